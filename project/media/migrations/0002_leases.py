"""The tables become job tables.

Every new column is nullable or has a database default, so that no row is rewritten and no INSERT
from before fails; the indexes are built while the workers go on.
"""

from collections.abc import Iterator

from django.db import migrations
from django.db.migrations.operations.base import Operation

from jobreaper.base import LeasedJob
from jobreaper.operations import AddLeaseColumns

# The tables had these already. Their types stay, so this changes nothing in the database.
HAD = {"attempt_count", "last_heartbeat_at", "stage", "status"}


def operations(model: str) -> Iterator[Operation]:
    yield AddLeaseColumns(model)
    for field in LeasedJob._meta.local_fields:
        if field.name in HAD:
            yield migrations.AlterField(model, field.name, field.clone())


class Migration(migrations.Migration):
    # CREATE INDEX CONCURRENTLY runs in no transaction.
    atomic = False
    dependencies = [("media", "0001_before_jobreaper")]

    operations = [*operations("Job"), *operations("AsrJob")]
