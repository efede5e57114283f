"""The table as it was before jobreaper: made by its owner's plain SQL."""

from pathlib import Path

from django.db import migrations, models

TABLE = Path(__file__).parent.parent / "sql" / "executor_jobs.sql"


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.RunSQL(TABLE.read_text(encoding="utf-8"), "DROP TABLE executor_jobs"),
        migrations.CreateModel(
            name="ExecutorJob",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={"db_table": "executor_jobs", "managed": False},
        ),
    ]
