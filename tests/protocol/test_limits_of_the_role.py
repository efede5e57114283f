"""What a DBA may set on a role or a database, and the verbs, beats and passes under it."""

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.db import DatabaseError, connection

from jobreaper import (
    Lease,
    cancel,
    claim,
    claim_next,
    enqueue,
    enqueue_many,
    hold,
    job_handler,
    pause,
    prune,
    reap,
    requeue,
    resume,
)
from jobreaper.celery.dispatcher import dispatch
from jobreaper.control import fail
from jobreaper.db import retry
from jobreaper.models import Job as OwnJob
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import claim_group, fail_group, finish_group, release_group
from jobreaper.protocol.holding import holding_of
from jobreaper.queue.handlers import _handlers
from jobreaper.queue.runs import run_due
from jobreaper.queue.worker import Worker
from jobreaper.tables import table_of
from project.media.models import Job
from tests.limits import SETTINGS, Limit, limit
from tests.rows import Rows, Sql, ago
from tests.waiting import until

__all__ = ["limit"]

VERBS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1", retry=False),
    "release": lambda lease: lease.release(),
    "save": lambda lease: lease.job.save(),
    "heartbeat": lambda lease: lease.heartbeat(),
}


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Handlers that a test declares are gone after it."""
    before = dict(_handlers)
    yield
    _handlers.clear()
    _handlers.update(before)


# Each ends what waits for a lock for so long.
LIMITS = [
    ("statement_timeout", "300ms"),
    ("lock_timeout", "300ms"),
    ("transaction_timeout", "300ms"),
]


def let_go_when_it_is_tried_again(holder: psycopg.Connection[object], sql: Sql) -> threading.Thread:
    """Release the holder's lock once a statement waits for it that is not the first to wait."""

    def waiting() -> list[dict[str, object]]:
        return sql(
            "SELECT pid, query_start FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )

    def let_go() -> None:
        try:
            first = until(waiting)
            until(lambda: waiting() not in ([], first))
        finally:
            holder.rollback()

    thread = threading.Thread(target=let_go)
    thread.start()
    return thread


@pytest.mark.parametrize(("name", "value"), LIMITS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_outlasts_a_lock_that_a_limit_of_the_role_would_not(
    name: str,
    value: str,
    verb: str,
    jobs: Rows,
    limit: Limit,
    second_connection: psycopg.Connection[object],
) -> None:
    limit(name, value)
    lease = claim(Job, jobs.plant())
    assert lease is not None
    second_connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
    letting_go = let_go_when_it_is_tried_again(second_connection, jobs.sql)
    VERBS[verb](lease)
    letting_go.join()
    assert not lease.lost


@pytest.mark.parametrize(("name", "value"), LIMITS)
def test_a_claim_outlasts_it_too_and_takes_the_job_once(
    name: str,
    value: str,
    jobs: Rows,
    limit: Limit,
    second_connection: psycopg.Connection[object],
) -> None:
    key = jobs.plant()
    limit(name, value)
    second_connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
    letting_go = let_go_when_it_is_tried_again(second_connection, jobs.sql)
    assert len(claim_next(Job)) == 1
    letting_go.join()
    assert jobs.row(key)["attempt_count"] == 1


def test_an_end_that_takes_longer_than_the_role_may_is_written(
    jobs: Rows, limit: Limit, sql: Sql
) -> None:
    """A trigger of the project may take its time; the work is done, and done once."""
    sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER dawdle BEFORE UPDATE ON jobs FOR EACH ROW"
        " WHEN (NEW.status = 'success') EXECUTE FUNCTION dawdle()"
    )
    try:
        limit("statement_timeout", "200ms")
        lease = claim(Job, jobs.plant())
        assert lease is not None
        lease.finish()
        assert jobs.event_types(lease.pk) == ["job:finished"]
    finally:
        sql("DROP FUNCTION dawdle CASCADE")


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_the_whole_life_of_a_job_under_what_is_set_on_the_role(
    name: str, value: str, jobs: Rows, limit: Limit
) -> None:
    keys = [jobs.plant() for _ in range(6)]
    limit(name, value)
    with hold(Job, keys[0]) as lease:
        before = lease.expires_at
        heartbeat.beat(connection, table_of(Job), [holding_of(lease)])
        assert lease.expires_at != before
        lease.job.save()
    second = claim(Job, keys[1])
    assert second is not None
    second.fail("E1", retry=False)
    for end in (finish_group, fail_group, release_group):
        runs = claim_group(table_of(Job), 1)
        for run in runs:
            run.error = ZeroDivisionError()
        assert end(runs).ended == runs
    late = jobs.plant_expired()
    result = reap([Job], hold=False)
    assert result.all_errors == []
    assert result.requeued_ids == {"jobs": [late]}


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_the_queue_its_operators_and_the_functions_under_it(
    name: str, value: str, jobs: Rows, limit: Limit
) -> None:
    limit(name, value)
    job_handler("idle")(lambda job, lease: None)
    made = enqueue_many([{}] * 3, type="idle").ids
    one = enqueue("idle", {"day": "2026-01-31"}, dedupe="replace", dedupe_key="a\\b")
    assert pause("idle", by="ann", reason="why")
    assert Worker().run(once=True).claimed == 0
    assert resume("idle", by="ann")
    assert cancel(OwnJob, [made[0]], by="ann") == [made[0]]
    assert fail(OwnJob, [made[1]], by="ann") == [made[1]]
    assert requeue(OwnJob, [made[1]], by="ann") == [made[1]]
    assert run_due(1, 20).succeeded == 1
    assert Worker().run(once=True).succeeded == 2
    Rows(jobs.sql, "jobreaper_jobs").set(one.pk, finished_at=ago(10**7))
    done = prune()
    assert (done.errors, done.deleted["jobreaper_jobs"]) == ([], 1)
    assert dispatch().errors == []
    held = [jobs.plant(), "w", 1]
    late = jobs.plant_expired()
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, locked_by, lease_epoch FROM jobs_claim('w')")
        assert cursor.fetchall() == [tuple(held)]
        for call in ("heartbeat", "finish"):
            cursor.execute(f"SELECT jobs_{call}(%s, %s, %s)", held)
            assert cursor.fetchone() == (True,)
        cursor.execute("SELECT job_id, outcome FROM jobs_reap()")
        assert cursor.fetchall() == [(str(late), "requeued")]


def test_a_role_that_may_only_read_loses_nothing_and_is_told_why(
    jobs: Rows, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a standby, which may be promoted meanwhile.
    monkeypatch.setattr(retry, "RETRIES", 1)
    lease = claim(Job, jobs.plant())
    assert lease is not None
    jobs.plant()
    late = jobs.plant_expired()
    limit("default_transaction_read_only", "on")
    verbs: list[Callable[[], object]] = [
        lease.finish,
        lambda: claim_next(Job),
        lambda: enqueue("idle"),
    ]
    for verb in verbs:
        with pytest.raises(DatabaseError, match="read-only transaction"):
            verb()
    assert any("read-only transaction" in error for error in reap(hold=False).all_errors)
    assert not lease.closed
    assert jobs.row(late)["status"] == "processing"


def test_beats_outlast_a_session_that_may_not_idle_and_say_nothing_of_it(
    jobs: Rows, limit: Limit, caplog: pytest.LogCaptureFixture, settings: object
) -> None:
    limit("idle_session_timeout", "50ms")
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.3}  # type: ignore[attr-defined]
    with hold(Job, jobs.plant()) as lease:
        # This thread's session may not idle either, so it asks nothing.
        holding = holding_of(lease)
        for _ in range(3):
            before = holding._runs_out_at
            until(lambda before=before: holding._runs_out_at != before)  # type: ignore[misc]
        lease.check()
    assert "heartbeat_failed" not in caplog.text


def test_a_key_is_merged_where_backslashes_escape_in_every_literal(limit: Limit) -> None:
    limit("standard_conforming_strings", "off")
    connection.close()
    key = "a\\b'c\\\\"
    first = enqueue("mail", dedupe="skip", dedupe_key=key)
    assert enqueue("mail", dedupe="skip", dedupe_key=key).pk == first.pk
    [lease] = claim_next(OwnJob)
    lease.finish()
    assert enqueue("mail", dedupe="skip", dedupe_key=key).pk != first.pk
    assert requeue(OwnJob, [first.pk], by="ann") == []


def test_a_claim_reads_its_job_in_a_session_that_a_handler_has_changed(jobs: Rows) -> None:
    key = jobs.plant()
    with connection.cursor() as cursor:
        cursor.execute("SET DateStyle = 'German, DMY'")
        cursor.execute("SET IntervalStyle = iso_8601")
    lease = claim(Job, key)
    assert lease is not None
    assert lease.job.claimed_at == jobs.row(key)["claimed_at"]
    lease.finish()
