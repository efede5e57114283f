"""How far a job of the ready-made table is, and when it has stalled."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0012_index_by_kind"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="progress",
            field=models.JSONField(
                blank=True,
                editable=False,
                help_text="What the job reported last: done, total and note.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When it last reported something new.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="stalls_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When this attempt has stalled, unless it reports something new.",
                null=True,
            ),
        ),
    ]
