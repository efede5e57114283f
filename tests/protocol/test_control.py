"""An operator requeues, fails or cancels jobs: exactly what is written."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import ServerBindingCursor

from jobreaper import LeaseLost, cancel, claim, control, fail, requeue
from jobreaper.states import Status, sources
from project.media.models import Job
from tests.protocol.ways import Renamed
from tests.rows import Rows, Sql, ago, ahead

VERBS: dict[str, Callable[..., list[Any]]] = {"requeue": requeue, "fail": fail, "cancel": cancel}
TARGETS = {"requeue": Status.QUEUED, "fail": Status.FAILED, "cancel": Status.CANCELLED}
UNLOCKED = {
    "locked_by": None,
    "claimed_at": None,
    "lease_expires_at": None,
    "deadline_at": None,
    "dispatched_at": None,
}


@pytest.mark.parametrize("status", [*Status, "paused"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_applies_to_the_statuses_that_may_lead_to_its_own(
    jobs: Rows, verb: str, status: str
) -> None:
    key = jobs.plant(status=status)
    before = jobs.row(key)
    applies = status in sources(TARGETS[verb])
    assert VERBS[verb](Job, [key], by="ann") == [key] * applies
    row = jobs.row(key)
    if applies:
        assert row["status"] == TARGETS[verb]
        assert row["lease_epoch"] == before["lease_epoch"] + 1
        assert len(jobs.events(key)) == 1
    else:
        assert row == before
        assert jobs.events(key) == []


def test_a_requeued_job_starts_afresh(jobs: Rows) -> None:
    # Kept counters would let the retry fail at its first trouble.
    key = jobs.plant(
        status="failed",
        attempt_count=3,
        reap_count=2,
        lease_epoch=6,
        finished_at=ago(60),
        next_earliest_run_at=ahead(60),
        fail_code="timeout",
        fail_reason="lease_expired",
        last_heartbeat_at=ago(400),
    )
    before = jobs.row(key)
    requeue(Job, [key], by="ann", reason="fixed")
    row = jobs.row(key)
    assert row == {
        **before,
        "status": "queued",
        "lease_epoch": 7,
        "attempt_count": 0,
        "reap_count": 0,
        "next_earliest_run_at": row["next_earliest_run_at"],
        "finished_at": None,
        "fail_code": None,
        "fail_reason": None,
    }
    assert claim(Job, key)


def test_a_cancelled_job_keeps_its_story(jobs: Rows) -> None:
    key = jobs.plant_running(fail_code="E1", fail_reason="the attempt before", reap_count=1)
    before = jobs.row(key)
    cancel(Job, [key], by="ann")
    row = jobs.row(key)
    assert row == {
        **before,
        **UNLOCKED,
        "status": "cancelled",
        "lease_epoch": 2,
        "finished_at": row["finished_at"],
    }
    assert row["finished_at"] is not None


def test_a_job_failed_by_hand_says_so(jobs: Rows) -> None:
    key = jobs.plant_running()
    before = jobs.row(key)
    fail(Job, [key], by="ann", reason="no such source")
    row = jobs.row(key)
    assert row == {
        **before,
        **UNLOCKED,
        "status": "failed",
        "lease_epoch": 2,
        "finished_at": row["finished_at"],
        "fail_code": "failed_by_hand",
        "fail_reason": "no such source",
    }


@pytest.mark.parametrize("verb", VERBS)
def test_the_event_says_who_why_and_what_was_before(jobs: Rows, verb: str) -> None:
    key = jobs.plant_running(stage="clip", attempt_count=2, lease_epoch=5)
    VERBS[verb](Job, [key], by="ann", reason="because\x00")
    [event] = jobs.events(key)
    past = {"requeue": "requeued", "fail": "failed", "cancel": "cancelled"}[verb]
    assert event == {
        "type": f"admin:{past}",
        "table": "jobs",
        "details": {
            "by": "ann",
            "reason": "because\\x00",
            "from_status": "processing",
            "locked_by": "elsewhere:7:0badf00d",
            "stage": "clip",
            "attempt": 2,
            "epoch": 5,
        },
        "at": event["at"],
    }


@pytest.mark.parametrize("verb", VERBS)
def test_the_worker_that_was_running_it_has_lost_it(jobs: Rows, verb: str) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    VERBS[verb](Job, [lease.pk], by="ann")
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    with pytest.raises(LeaseLost):
        lease.finish()
    assert jobs.row(lease.pk)["status"] == TARGETS[verb]


def test_a_cancelled_job_cannot_be_started_late(jobs: Rows) -> None:
    key = jobs.plant()
    cancel(Job, [key], by="ann")
    assert claim(Job, key) is None


def test_parameters_bound_by_the_server_suit_a_status_that_is_an_enum(
    sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with server_side_binding in the OPTIONS of the database.
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "cursor_factory", ServerBindingCursor)
    table = Renamed(sql)
    try:
        for verb in ("fail", "requeue", "cancel"):
            key = table.rows.plant(status="failed" if verb == "requeue" else "processing")
            assert VERBS[verb](table.model, [key], by="ann") == [key]
            assert table.rows.row(key)["status"] == TARGETS[verb]
    finally:
        table.close()


def test_many_are_changed_at_once_and_those_changed_are_named(jobs: Rows) -> None:
    queued, done, running = jobs.plant(), jobs.plant(status="success"), jobs.plant_running()
    missing = 987_654_321
    assert sorted(cancel(Job, [queued, done, running, missing], by="ann")) == [queued, running]
    assert jobs.row(done)["status"] == "success"


def test_nothing_chosen_changes_nothing(jobs: Rows) -> None:
    key = jobs.plant()
    assert cancel(Job, [], by="ann") == []
    assert jobs.row(key)["status"] == "queued"


def test_a_row_locked_for_long_is_reported_and_not_waited_for(
    jobs: Rows, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = jobs.plant()
    monkeypatch.setattr(control, "LOCK_TIMEOUT_SEC", 0.05)
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [key])
    with pytest.raises(OperationalError, match="lock timeout"):
        cancel(Job, [key], by="ann")


@pytest.mark.parametrize("verb", VERBS)
def test_a_change_survives_a_session_that_was_ended_in_idleness(
    jobs: Rows, sql: Sql, verb: str
) -> None:
    key = jobs.plant_running()
    connection.ensure_connection()
    sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    assert VERBS[verb](Job, [key], by="ann") == [key]


def test_a_change_that_may_have_been_carried_out_is_not_sent_again(
    jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that was requeued is claimed before the second try."""
    key = jobs.plant(status="failed")
    fetch: Callable[..., Any] = control.fetch  # type: ignore[attr-defined]

    def fetch_and_lose(*args: Any) -> Any:
        fetch(*args)
        connection.connection.commit()
        sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
        jobs.set(key, status="processing", locked_by="w2", lease_epoch=2)
        return fetch(connection, "SELECT 1", {})

    monkeypatch.setattr(control, "fetch", fetch_and_lose)
    with pytest.raises(OperationalError):
        requeue(Job, [key], by="ann")
    assert jobs.row(key)["status"] == "processing"
