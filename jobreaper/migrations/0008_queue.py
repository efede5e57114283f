"""The queue of a job of the ready-made table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0007_workers_stopping"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="queue",
            field=models.TextField(
                blank=True,
                db_default="default",
                default="default",
                help_text="Which workers run it: those of manage.py work --queue, and those of all.",
            ),
        ),
        migrations.AlterField(
            model_name="pause",
            name="name",
            field=models.TextField(help_text="The stage, the type or queue:… that is paused."),
        ),
    ]
