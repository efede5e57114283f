"""What the function of a job of the ready-made table returned."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0008_queue"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="result",
            field=models.JSONField(
                blank=True,
                editable=False,
                help_text="What the job's function returned.",
                null=True,
            ),
        ),
    ]
