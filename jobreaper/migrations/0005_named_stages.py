"""Which stages have a series of their own in the counters."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobreaper", "0004_payload_may_be_empty")]

    operations = [
        migrations.CreateModel(
            name="NamedStage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("table", models.TextField(help_text="The job table.")),
                ("stage", models.TextField()),
                (
                    "place",
                    models.SmallIntegerField(
                        help_text="Which of the names of its table; none by a policy.",
                        null=True,
                    ),
                ),
            ],
            options={
                "db_table": "jobreaper_stages",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("table", "stage"), name="uniq_jobreaper_stages"
                    ),
                    models.UniqueConstraint(
                        fields=("table", "place"), name="uniq_jobreaper_places"
                    ),
                ],
            },
        ),
    ]
