"""Times that PostgreSQL knows and Python does not, as a person at psql may write them: one such row
stops nobody, and costs no other job an attempt.
"""

from typing import Any

import psycopg
import pytest
from django.db import DataError, connection

from jobreaper import Lease, LeaseLost, claim, claim_next, reap
from jobreaper.protocol.heartbeat import beat
from jobreaper.protocol.holding import holding_of
from jobreaper.states import EventType, Reason, Status
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql

PAST = ["-infinity", "4000-01-01 BC"]
FUTURE = ["infinity", "20000-01-01"]


def as_text(sql: Sql, column: str, key: object) -> Any:
    [row] = sql(f"SELECT {column}::text AS text FROM jobs WHERE id = %s", key)
    return row["text"]


@pytest.mark.parametrize("due_at", PAST)
def test_a_job_that_was_always_due_is_claimed_with_the_others(
    jobs: Rows, sql: Sql, due_at: str
) -> None:
    bad, good = jobs.plant(next_earliest_run_at=due_at), jobs.plant()
    leases = claim_next(Job, 5)
    assert [lease.pk for lease in leases] == [bad, good]
    for lease in leases:
        lease.finish()
    assert sql("SELECT DISTINCT status, attempt_count FROM jobs") == [
        {"status": Status.SUCCESS, "attempt_count": 1}
    ]


@pytest.mark.parametrize("column", ["created_at", "finished_at"])
@pytest.mark.parametrize("moment", PAST + FUTURE)
def test_a_time_that_cannot_be_read_is_missed_by_whoever_reads_it_and_saved_as_it_was(
    jobs: Rows, sql: Sql, column: str, moment: str
) -> None:
    key = jobs.plant(**{column: moment})
    before = as_text(sql, column, key)
    lease = claim(Job, key)
    assert lease is not None
    assert lease.job.get_deferred_fields() == {column}
    with pytest.raises(DataError):
        getattr(lease.job, column)
    lease.job.payload = {"progress": 1}
    lease.job.save()
    lease.finish()
    if column == "created_at":
        assert as_text(sql, column, key) == before
    assert as_text(sql, "payload", key) == '{"progress": 1}'


@pytest.mark.parametrize("verb", ["finish", "fail", "release"])
@pytest.mark.parametrize("moment", PAST + FUTURE)
def test_an_attempt_that_began_at_no_time_can_be_ended(
    jobs: Rows, sql: Sql, verb: str, moment: str
) -> None:
    key = jobs.plant()
    lease = claim(Job, key)
    assert lease is not None
    jobs.set(key, claimed_at=moment)
    lease.fail("broken") if verb == "fail" else getattr(lease, verb)()
    assert as_text(sql, "locked_by", key) is None


@pytest.fixture
def two(jobs: Rows) -> list[Lease]:
    """Two leases, as one process holds them."""
    for _ in range(2):
        jobs.plant()
    return claim_next(Job, 2)


@pytest.mark.parametrize("deadline", PAST)
def test_a_deadline_before_all_time_ends_its_own_job_alone(
    jobs: Rows, two: list[Lease], deadline: str
) -> None:
    late, well = two
    jobs.set(late.pk, deadline_at=deadline)
    beat(connection, table_of(Job), [holding_of(lease) for lease in two])
    assert (late.lost, well.lost) == (True, False)
    assert reap([Job]).requeued_ids == {"jobs": [late.pk]}
    [event] = jobs.events(late.pk)
    assert event["details"]["reason"] == Reason.DEADLINE
    with pytest.raises(LeaseLost):
        late.finish()
    well.finish()


@pytest.mark.parametrize("deadline", FUTURE)
def test_a_deadline_after_all_time_is_none(jobs: Rows, two: list[Lease], deadline: str) -> None:
    jobs.set(two[0].pk, deadline_at=deadline)
    beat(connection, table_of(Job), [holding_of(lease) for lease in two])
    assert not any(lease.lost for lease in two)
    for lease in two:
        lease.finish()


def test_what_cannot_be_read_is_so_for_the_orm_too(jobs: Rows, sql: Sql) -> None:
    """Where this fails, psycopg has learnt it and `protocol.rows` has an exception too many."""
    jobs.plant(next_earliest_run_at="-infinity")
    with pytest.raises(psycopg.DataError):
        sql("SELECT next_earliest_run_at FROM jobs")


@pytest.mark.parametrize("seen_at", PAST)
def test_a_silent_job_not_seen_since_before_all_time_is_reaped(
    jobs: Rows, settings: Any, seen_at: str
) -> None:
    settings.JOBREAPER = {"STAGES": {"clip": {"ttl": "15m"}}}
    key = jobs.plant(stage="clip", status="processing", last_heartbeat_at=seen_at)
    assert reap([Job]).requeued_ids == {"jobs": [key]}
    assert jobs.event_types(key) == [EventType.REAPER_REQUEUED]
