"""An operator requeues, fails or cancels jobs: exactly what is written."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection
from django.db.backends.postgresql.base import ServerBindingCursor

from jobreaper import LeaseLost, cancel, claim, db, fail, requeue, signals
from jobreaper.control import by_hand
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


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


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


@pytest.fixture
def refusing(sql: Sql) -> Iterator[Callable[[str], None]]:
    """Let the table refuse to write rows whose stage is ``refused``, at once or at the commit."""

    def refuse(when: str) -> None:
        sql(
            "CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
        )
        sql(
            f"CREATE CONSTRAINT TRIGGER refuses AFTER UPDATE ON jobs DEFERRABLE INITIALLY {when}"
            " FOR EACH ROW WHEN (NEW.stage = 'refused') EXECUTE FUNCTION refuse_one()"
        )

    yield refuse
    sql("DROP FUNCTION IF EXISTS refuse_one CASCADE")


@pytest.mark.parametrize("when", ["IMMEDIATE", "DEFERRED"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_row_that_cannot_be_written_costs_the_others_nothing_and_is_named(
    verb: str, when: str, jobs: Rows, refusing: Callable[[str], None]
) -> None:
    stages = ["clip", "refused", "clip", "clip", "refused"]
    keys = [jobs.plant_running(stage=stage) for stage in stages]
    written = [key for key, stage in zip(keys, stages, strict=True) if stage == "clip"]
    refusing(when)
    heard: list[tuple[Any, str]] = []

    def note(sender: object, pk: Any, error: Exception, **_: Any) -> None:
        heard.append((pk, db.in_words(error)))

    signals.change_refused.connect(note)
    try:
        assert sorted(VERBS[verb](Job, keys, by="ann")) == written
    finally:
        signals.change_refused.disconnect(note)
    assert heard == [(keys[1], "not this one"), (keys[4], "not this one")]
    assert {jobs.row(key)["status"] for key in written} == {TARGETS[verb]}
    assert jobs.row(keys[1])["status"] == "processing"


def test_if_every_row_is_refused_the_reason_is_raised(
    jobs: Rows, refusing: Callable[[str], None]
) -> None:
    keys = [jobs.plant(stage="refused") for _ in range(3)]
    refusing("IMMEDIATE")
    for chosen in (keys, keys[:1]):
        with pytest.raises(DatabaseError, match="not this one"):
            cancel(Job, chosen, by="ann")


def test_nothing_chosen_changes_nothing(jobs: Rows) -> None:
    key = jobs.plant()
    assert cancel(Job, [], by="ann") == []
    assert jobs.row(key)["status"] == "queued"


def test_a_row_locked_for_long_is_reported_and_not_waited_for(
    jobs: Rows, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = jobs.plant()
    monkeypatch.setattr(by_hand, "LOCK_TIMEOUT_SEC", 0.05)
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
    fetch: Callable[..., Any] = by_hand.fetch  # type: ignore[attr-defined]

    def fetch_and_lose(*args: Any) -> Any:
        fetch(*args)
        connection.connection.commit()
        sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
        jobs.set(key, status="processing", locked_by="w2", lease_epoch=2)
        return fetch(connection, "SELECT 1", {})

    monkeypatch.setattr(by_hand, "fetch", fetch_and_lose)
    with pytest.raises(OperationalError):
        requeue(Job, [key], by="ann")
    assert jobs.row(key)["status"] == "processing"
