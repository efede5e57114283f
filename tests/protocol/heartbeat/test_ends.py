"""When a heartbeat moves the end of a lease: an index contains the end, so each move costs."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import Lease, claim
from jobreaper.tables import job_tables
from project.media.models import Job
from tests.rows import Rows, Sql, ago, ahead

pytestmark = pytest.mark.django_db


def by_function(lease: Lease) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT jobs_heartbeat(%s, %s)", [lease.pk, lease.worker])


BEATS: dict[str, Callable[[Lease], object]] = {
    "python": lambda lease: lease.heartbeat(),
    "function": by_function,
}
STANDS = {
    "a third of a lease further": (ahead(395), True),
    "a whole lease": (ahead(310), True),
    "less": (ahead(290), False),
    "run out, and not reaped yet": (ago(1), False),
    "none": (None, False),
    # As after a change of the settings, or when the clock was set back.
    "more than a heartbeat sets": (ahead(500), False),
}


@override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 300})
@pytest.mark.parametrize("beat", BEATS)
@pytest.mark.parametrize("left", STANDS)
def test_the_end_stands_while_a_whole_lease_is_left(
    left: str, beat: str, jobs: Rows, sql: Sql
) -> None:
    end, stands = STANDS[left]
    lease = claim(Job, jobs.plant())
    assert lease is not None
    sql("UPDATE jobs SET lease_expires_at = statement_timestamp() + %s", end)
    before = jobs.row(lease.pk)
    BEATS[beat](lease)
    row = jobs.row(lease.pk)
    assert row["last_heartbeat_at"] > before["last_heartbeat_at"]
    assert (row["lease_expires_at"] == before["lease_expires_at"]) == stands
    if not stands:
        assert row["lease_expires_at"] - row["last_heartbeat_at"] == timedelta(seconds=400)
    if beat == "python":
        assert lease.expires_at == row["lease_expires_at"]


@override_settings(JOBREAPER={"STAGES": {"clip": {"lease": "10h"}}})
def test_a_long_lease_ends_at_most_five_minutes_later_than_needed(jobs: Rows) -> None:
    lease = claim(Job, jobs.plant(stage="clip"))
    assert lease is not None
    lease.heartbeat()
    row = jobs.row(lease.pk)
    length = row["lease_expires_at"] - row["last_heartbeat_at"]
    assert length == timedelta(hours=10, minutes=5)


def test_no_index_contains_what_each_heartbeat_writes(sql: Sql) -> None:
    found = sql(
        "SELECT DISTINCT a.attrelid::regclass::text AS name FROM pg_index AS i"
        " JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE a.attname = 'last_heartbeat_at'"
    )
    leased = {table.name for table in job_tables() if "lease_expires_at" in table.columns}
    assert not {row["name"] for row in found} & leased
