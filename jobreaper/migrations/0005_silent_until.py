"""When many workers had fallen silent together."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0004_chores"),
    ]

    operations = [
        migrations.AddField(
            model_name="reaperpass",
            name="silent_until",
            field=models.DateTimeField(null=True),
        ),
    ]
