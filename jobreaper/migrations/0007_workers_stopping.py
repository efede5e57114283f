"""When a worker was told to stop."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0006_job_states"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="stopping_at",
            field=models.DateTimeField(
                blank=True, help_text="When it was told to stop.", null=True
            ),
        ),
    ]
