"""A prefork worker: what its children run, and what becomes of the job of one that dies."""

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import psycopg
import pytest

from jobreaper import cancel
from jobreaper.states import EventType, FailCode, Status
from project.media.models import Job
from tests.celery.brokers import BROKERS, broker_url
from tests.celery.workers import (
    AGAIN_SEC,
    Worker,
    await_status,
    beats,
    celery_workers,
    exists,
    ready,
    running,
)
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture(scope="module", params=BROKERS)
def worker(request: pytest.FixtureRequest, database_url: str) -> Iterator[Worker]:
    """A worker with two children, on each broker."""
    with celery_workers(database_url, broker_url(request.param)) as start:
        worker = start("--pool", "prefork", "--concurrency", "2")
        ready(worker)
        yield worker


def await_again(jobs: Rows, key: int, attempt: int = 2) -> int:
    """Wait until the job runs again, in far less time than its lease."""
    until(lambda: jobs.row(key)["attempt_count"] == attempt, timeout_sec=AGAIN_SEC)
    return running(jobs, key, attempt)


def end(worker: Worker, jobs: Rows, key: int) -> None:
    """Let a waiting job succeed."""
    worker.let_go(key)
    await_status(jobs, key, Status.SUCCESS)


# Alive


def test_each_child_has_connections_of_its_own_and_a_thread_that_beats(
    worker: Worker, media: Rows
) -> None:
    keys = [worker.send(media, "wait") for _ in range(2)]
    pids = {running(media, key) for key in keys}
    assert len(pids) == 2
    assert pids <= worker.children()
    for key in keys:
        beats(media, key)
        end(worker, media, key)
    names = worker.send(media, "write_names")
    seen = await_status(media, names, Status.SUCCESS)["payload"]["names"]
    assert (seen["parent"], seen["beats"]) == (worker.child.pid, 1)
    assert seen["pid"] in worker.children()


def test_children_do_not_share_a_connection(worker: Worker, media: Rows) -> None:
    keys = [worker.send(media, "wait_in_transaction") for _ in range(2)]
    for key in keys:
        until(lambda key=key: (worker.home / f"{key}.locked").exists())  # type: ignore[misc]
    [open] = media.sql(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    assert open["count"] == 2
    for key in keys:
        end(worker, media, key)


def test_the_main_process_keeps_no_connection_but_those_that_say_it_is_here(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "wait", max_attempts=1)
    os.kill(running(media, key), signal.SIGKILL)
    await_status(media, key, Status.FAILED)
    sessions = """
        SELECT 1 FROM pg_stat_activity AS session
         WHERE application_name = %s
           AND NOT EXISTS (SELECT FROM pg_locks
                            WHERE pid = session.pid AND locktype = 'advisory')
    """
    until(lambda: not media.sql(sessions, worker.app.conf.task_default_queue))


def test_a_soft_time_limit_is_an_exception_that_is_retried(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait", soft_time_limit=1)
    until(lambda: media.event_types(key) == [EventType.JOB_RETRIED])
    row = media.row(key)
    assert (row["fail_code"], row["reap_count"]) == ("SoftTimeLimitExceeded", 0)


def test_a_soft_time_limit_that_the_function_catches_is_its_own_affair(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "wait_patiently", soft_time_limit=1)
    await_status(media, key, Status.SUCCESS)


def test_a_function_that_exits_has_failed_and_its_child_goes_on(
    worker: Worker, media: Rows
) -> None:
    before = worker.children()
    key = worker.send(media, "exit_")
    until(lambda: media.event_types(key) == [EventType.JOB_RETRIED])
    assert media.row(key)["fail_code"] == "SystemExit"
    assert worker.children() == before


def test_a_process_that_the_function_forks_is_no_further_child_of_the_pool(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "fork")
    await_status(media, key, Status.SUCCESS)
    assert media.event_types(key) == [EventType.JOB_FINISHED]
    assert not [child for pid in worker.children() for child in psutil.Process(pid).children()]
    names = worker.send(media, "write_names")
    assert await_status(media, names, Status.SUCCESS)["attempt_count"] == 1


def test_a_job_that_is_cancelled_stops_without_an_exception_in_the_log(
    worker: Worker, media: Rows
) -> None:
    """pulp 7389."""
    said = len(worker.log)
    key = worker.send(media, "wait")
    running(media, key)
    assert cancel(Job, [key], by="somebody") == [key]
    until(lambda: f"lost the lease of jobs {key}" in worker.log[said:])
    assert media.row(key)["status"] == Status.CANCELLED
    assert media.event_types(key) == [EventType.ADMIN_CANCELLED]
    assert "Traceback" not in worker.log[said:]


def test_with_interrupt_a_function_that_never_asks_is_stopped(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait_unaware", stage="interruptible")
    pid = running(media, key)
    cancel(Job, [key], by="somebody")
    until(lambda: "do_interruptible stopped: " in worker.log)
    # Its child is none the worse for it.
    assert exists(pid)
    assert media.event_types(key) == [EventType.ADMIN_CANCELLED]


# Dead


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_childs_job_runs_again_at_once_however_long_its_lease(
    number: signal.Signals, worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "wait")
    pid = running(media, key)
    os.kill(pid, number)
    again = await_again(media, key)
    assert again != pid
    row = media.row(key)
    assert (row["reap_count"], row["lease_epoch"]) == (1, 3)
    [event] = media.events(key)
    assert event["type"] == EventType.JOB_WORKER_LOST
    details = event["details"]
    assert (details["outcome"], details["attempt"], details["epoch"]) == (Status.QUEUED, 1, 1)
    assert details["locked_by"].split(":")[-2] == str(pid)
    if number != signal.SIGTERM:  # billiard's own handler makes an exit of that
        assert details["how"] == f"signal {number.value} ({number.name})"
    end(worker, media, key)
    assert media.event_types(key) == [EventType.JOB_WORKER_LOST, EventType.JOB_FINISHED]


def test_a_dead_childs_neighbour_is_not_disturbed(worker: Worker, media: Rows) -> None:
    dying, living = worker.send(media, "wait"), worker.send(media, "wait")
    pid, other = running(media, dying), running(media, living)
    os.kill(pid, signal.SIGKILL)
    await_again(media, dying)
    assert running(media, living) == other
    beats(media, living)
    for key in (dying, living):
        end(worker, media, key)
    assert media.row(living)["reap_count"] == 0


def test_a_hard_time_limit_is_a_lost_worker_with_that_reason(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait", time_limit=1)
    pid = running(media, key)
    await_again(media, key)
    [event] = media.events(key)
    assert event["type"] == EventType.JOB_WORKER_LOST
    assert event["details"]["how"] == "hard time limit of 1 s exceeded"
    until(lambda: not exists(pid))
    end(worker, media, key)


@pytest.fixture
def slow_claims(sql: Sql) -> Iterator[Callable[[float], None]]:
    """Return a function that makes the first claim of each job take so many seconds."""

    def dawdle(sec: float) -> None:
        sql(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_sleep({sec}); RETURN NEW; END $$"
        )
        sql(
            "CREATE TRIGGER dawdle BEFORE UPDATE ON jobs FOR EACH ROW"
            " WHEN (NEW.status = 'processing' AND NEW.lease_epoch = 1) EXECUTE FUNCTION dawdle()"
        )

    yield dawdle
    sql("DROP FUNCTION IF EXISTS dawdle CASCADE")


@pytest.fixture
def held_claims(sql: Sql, second_connection: psycopg.Connection) -> Iterator[Callable[[], None]]:
    """Hold the first claim of each job, and return a function that lets it go on."""
    sql(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(5117); RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER hold BEFORE UPDATE ON jobs FOR EACH ROW"
        " WHEN (NEW.status = 'processing' AND NEW.lease_epoch = 1) EXECUTE FUNCTION hold()"
    )
    second_connection.execute("SELECT pg_advisory_xact_lock(5117)")
    yield second_connection.rollback
    second_connection.rollback()
    sql("DROP FUNCTION IF EXISTS hold CASCADE")


def is_held(sql: Sql) -> bool:
    """Return whether a claim waits to go on."""
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    return bool(sql(f"SELECT 1 FROM pg_locks WHERE objid = 5117 AND NOT granted AND {here}"))


def is_being_claimed(sql: Sql) -> bool:
    """Return whether a claim is under way."""
    sleeping = "wait_event = 'PgSleep' AND datname = current_database()"
    return bool(sql(f"SELECT 1 FROM pg_stat_activity WHERE {sleeping}"))


def test_a_claim_that_outlives_its_child_is_given_back_too(
    worker: Worker, media: Rows, sql: Sql, slow_claims: Callable[[float], None]
) -> None:
    slow_claims(0.5)
    key = worker.send(media, "wait")
    until(lambda: is_being_claimed(sql))
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    await_again(media, key)
    [event] = media.events(key)
    assert event["details"]["how"] == "signal 9 (SIGKILL)"
    end(worker, media, key)


def test_a_claim_that_comes_after_the_hard_time_limit_is_given_back_for_that_reason(
    worker: Worker, media: Rows, sql: Sql, held_claims: Callable[[], None]
) -> None:
    key = worker.send(media, "wait", time_limit=1)
    until(lambda: is_held(sql))
    children = worker.children()
    for pid in children:
        # It is told to stop a tenth of a second before it is killed, and would withdraw its claim.
        os.kill(pid, signal.SIGSTOP)
    until(lambda: not all(map(exists, children)))
    held_claims()
    for pid in filter(exists, children):
        os.kill(pid, signal.SIGCONT)
    await_again(media, key)
    [event] = media.events(key)
    assert event["details"]["how"] == "hard time limit of 1 s exceeded"
    end(worker, media, key)


def test_a_row_locked_by_the_dead_childs_transaction_is_given_back_too(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "wait_in_transaction")
    pid = running(media, key)
    until(lambda: (worker.home / f"{key}.locked").exists())
    os.kill(pid, signal.SIGKILL)
    await_again(media, key)
    end(worker, media, key)


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("crash", "signal 11 (SIGSEGV)"),
        ("be_killed", "signal 9 (SIGKILL)"),
        ("leave", "exitcode 7"),
    ],
)
def test_from_the_second_loss_on_the_job_waits_for_its_backoff(
    deed: str, how: str, worker: Worker, media: Rows
) -> None:
    """celery#9082, hindsight#2675: a job that kills its worker does not loop."""
    key = worker.send(media, deed)
    until(lambda: media.row(key)["reap_count"] == 2)
    row = media.row(key)
    assert (row["status"], row["attempt_count"]) == (Status.QUEUED, 2)
    assert (row["next_earliest_run_at"] - media.now()).total_seconds() > 500
    events = media.events(key)
    assert [event["type"] for event in events] == [EventType.JOB_WORKER_LOST] * 2
    assert [event["details"]["how"] for event in events] == [how] * 2


def test_the_last_attempts_loss_fails_the_job_with_the_outcome_on_record(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "be_killed", max_attempts=2)
    row = await_status(media, key, Status.FAILED)
    assert (row["fail_code"], row["attempt_count"]) == (FailCode.WORKER_LOST, 2)
    assert row["fail_reason"] == "signal 9 (SIGKILL)"
    outcomes = [event["details"]["outcome"] for event in media.events(key)]
    assert outcomes == [Status.QUEUED, Status.FAILED]
    assert media.event_types(key) == [EventType.JOB_WORKER_LOST] * 2


def test_a_stage_that_budgets_lost_workers_ends_as_poison_with_its_attempts_left(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "be_killed", stage="poison", max_attempts=9)
    row = await_status(media, key, Status.FAILED)
    assert (row["fail_code"], row["reap_count"]) == (FailCode.POISON, 2)
    assert [event["details"]["fail_code"] for event in media.events(key)] == [None, "poison"]


# revoke()


def test_revoke_with_terminate_cancels_a_running_job(worker: Worker, media: Rows) -> None:
    key = worker.send(media, "wait", task_id="revoked-in-mid-run")
    pid = running(media, key)
    worker.app.control.revoke("revoked-in-mid-run", terminate=True)
    await_status(media, key, Status.CANCELLED)
    until(lambda: not exists(pid))
    [event] = [each for each in media.events(key) if each["type"] == EventType.JOB_CANCELLED]
    assert event["details"]["reason"] == "revoked"
    # The worker has buried its child, and found nothing to give back.
    after = worker.send(media, "write_names")
    await_status(media, after, Status.SUCCESS)
    assert media.row(key)["status"] == Status.CANCELLED
    # The child may try to give it back before it dies, sooner or later than that.
    of_child = {EventType.JOB_RELEASED, EventType.JOB_STALE_WRITE_REJECTED}
    found = media.event_types(key)
    assert [kind for kind in found if kind not in of_child] == [EventType.JOB_CANCELLED]
    assert len(found) <= 2


def test_revoke_with_terminate_cancels_a_job_that_holds_its_row_locked(
    worker: Worker, media: Rows
) -> None:
    key = worker.send(media, "wait_in_transaction", task_id="revoked-locked")
    running(media, key)
    until(lambda: (worker.home / f"{key}.locked").exists())
    worker.app.control.revoke("revoked-locked", terminate=True)
    await_status(media, key, Status.CANCELLED)


def test_revoke_without_terminate_cancels_a_job_that_waits_in_the_worker(
    worker: Worker, media: Rows
) -> None:
    busy = [worker.send(media, "wait") for _ in range(2)]
    for key in busy:
        running(media, key)
    waiting = worker.send(media, "wait", task_id="revoked-waiting")
    worker.app.control.revoke("revoked-waiting")
    until(lambda: "Tasks flagged as revoked: revoked-waiting" in worker.log)
    for key in busy:
        end(worker, media, key)
    await_status(media, waiting, Status.CANCELLED)
    assert media.event_types(waiting) == [EventType.JOB_CANCELLED]
