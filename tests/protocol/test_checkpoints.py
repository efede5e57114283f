"""What a job saves under its lease, and what the next attempt finds."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import models, transaction

from jobreaper import BadState, Lease, LeaseClosed, LeaseLost, claim, enqueue, register
from jobreaper.models import Job as ReadyMade
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.protocol.checkpoint import LARGEST_STATE_BYTES
from jobreaper.tables import adoption, table_of
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.tables import errands

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def adopted(sql: Sql) -> Iterator[type[models.Model]]:
    sql(errands.DEFINITION)
    register(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    yield errands.Errand
    adoption._tables.pop(errands.Errand)
    sql("DROP SCHEMA office CASCADE")


def state_of(lease: Lease) -> dict[str, Any] | None:
    # mypy takes a property for a value that stays.
    return lease.state


def claimed(model: type[models.Model], key: Any) -> Lease:
    lease = claim(model, key)
    assert lease is not None
    return lease


@pytest.fixture
def lease(jobs: Rows) -> Lease:
    return claimed(Job, jobs.plant())


def saved(sql: Sql) -> int:
    [row] = sql("SELECT count(*) FROM jobreaper_states")
    return int(row["count"])


@pytest.mark.parametrize("kind", ["own", "ready-made", "adopted"])
def test_the_next_attempt_finds_it_and_the_end_clears_it(
    kind: str, jobs: Rows, sql: Sql, request: pytest.FixtureRequest
) -> None:
    model: type[models.Model] = Job
    key: Any = jobs.plant()
    if kind == "ready-made":
        model, key = ReadyMade, enqueue("idle").pk
    elif kind == "adopted":
        model = request.getfixturevalue("adopted")
        key = errands.Errands(sql).plant()
    lease = claimed(model, key)
    assert state_of(lease) is None
    lease.save_state({"page": 1})
    lease.save_state({"page": 2, "text": "ü\\u0000"})
    assert state_of(lease) == {"page": 2, "text": "ü\\u0000"}
    lease.release()

    again = claimed(model, key)
    assert again.state == {"page": 2, "text": "ü\\u0000"}
    again.finish()
    assert saved(sql) == 0


def test_one_that_is_only_read_is_cleared_too_and_that_of_others_is_kept(
    jobs: Rows, sql: Sql
) -> None:
    keys = [enqueue("idle").pk for _ in range(3)]
    for key in keys:
        lease = claimed(ReadyMade, key)
        lease.save_state({"key": str(key)})
        lease.release()
    runs = claim_group(table_of(ReadyMade), 2)
    assert [run.lease.state for run in runs] == [{"key": str(run.lease.pk)} for run in runs]
    finish_group(runs)
    [left] = sql("SELECT job_id FROM jobreaper_states")
    assert left["job_id"] not in {str(run.lease.pk) for run in runs}


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_it_survives_an_end_that_is_no_success(end: str, lease: Lease, jobs: Rows) -> None:
    lease.save_state({"page": 2})
    if end == "fail":
        lease.fail("E", retry=False)
    else:
        jobs.set(lease.pk, status="cancelled", locked_by=None)
    jobs.set(lease.pk, status="queued", finished_at=None)
    assert claimed(Job, lease.pk).state == {"page": 2}


def test_none_starts_over(lease: Lease) -> None:
    lease.save_state({"page": 2})
    lease.save_state(None)
    assert state_of(lease) is None


@pytest.mark.parametrize("how", ["reaped", "other worker", "superseded"])
def test_who_has_lost_the_lease_saves_nothing_and_that_is_on_record(
    how: str, lease: Lease, jobs: Rows, sql: Sql
) -> None:
    lease.save_state({"page": 1})
    if how == "reaped":
        jobs.set(lease.pk, status="queued", locked_by=None, lease_epoch=lease.epoch + 1)
    elif how == "other worker":
        jobs.set(lease.pk, locked_by="w2")
    else:
        # A failover has lost the claim, and this worker gets the same epoch again.
        jobs.set(lease.pk, status="queued", locked_by=None, lease_epoch=lease.epoch - 1)
        claimed(Job, lease.pk)
    with pytest.raises(LeaseLost):
        lease.save_state({"page": 2})
    assert [row["state"] for row in sql("SELECT state FROM jobreaper_states")] == [{"page": 1}]
    [event] = [e for e in jobs.events(lease.pk) if e["type"] == "job:stale_write_rejected"]
    assert event["details"]["verb"] == "save_state"


def test_after_the_end_there_is_nothing_to_save(lease: Lease) -> None:
    lease.finish()
    with pytest.raises(LeaseClosed):
        lease.save_state({})


def test_it_is_part_of_the_callers_transaction(lease: Lease, sql: Sql) -> None:
    with transaction.atomic():
        lease.save_state({"page": 1})
        assert state_of(lease) == {"page": 1}
        assert saved(sql) == 0
        transaction.set_rollback(True)
    assert state_of(lease) is None
    lease.save_state({"page": 1})
    with transaction.atomic():
        lease.finish()
        transaction.set_rollback(True)
    assert saved(sql) == 1
    lease.finish()
    assert saved(sql) == 0


LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([1], "a state is a dict or None, not of type list"),
        ({"at": object()}, "is not JSON: Object of type object is not JSON serializable"),
        ({"n": float("nan")}, "is not JSON"),
        (LOOP, "is not JSON: Circular reference"),
        ({"half": "\ud800"}, "is not JSON"),
        ({"nul": "\x00"}, r"has the character \\u0000"),
        ({"text": "x" * LARGEST_STATE_BYTES}, "has 65,548 bytes as JSON, and 65,536 are the most"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_the_reason(
    state: Any, said: str, lease: Lease, sql: Sql
) -> None:
    with pytest.raises(BadState, match=said):
        lease.save_state(state)
    assert saved(sql) == 0
    lease.save_state({"text": "x" * (LARGEST_STATE_BYTES - 12)})
