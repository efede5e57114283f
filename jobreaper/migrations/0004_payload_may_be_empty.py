"""A form may leave a job's payload empty: ``{}``. The column stays as it is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobreaper", "0003_totals_and_traces")]

    operations = [
        migrations.AlterField(
            model_name="job",
            name="payload",
            field=models.JSONField(
                blank=True, db_default=models.Value({}, models.JSONField()), default=dict
            ),
        ),
    ]
