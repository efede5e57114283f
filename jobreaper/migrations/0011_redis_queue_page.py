"""The page of the Redis queue in the admin, with its permissions."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("jobreaper", "0010_what_people_see"),
    ]

    operations = [
        migrations.CreateModel(
            name="RedisQueue",
            fields=[],
            options={
                "verbose_name": "Redis queue",
                "verbose_name_plural": "Redis queue",
                "proxy": True,
                "default_permissions": ("view", "change", "delete"),
                "indexes": [],
                "constraints": [],
            },
            bases=("jobreaper.jobevent",),
        ),
    ]
