"""A worker in this process: what it claims, how each job ends, what it does when told to stop."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import Error, connection, connections, transaction
from django.test import override_settings
from django.utils.connection import ConnectionDoesNotExist
from psycopg.sql import SQL, Identifier

from jobreaper import cancel, enqueue, enqueue_many, heartbeat, job_handler, pause, reap, signals
from jobreaper.lease_groups import claim_group, fail_group, finish_group, release_group
from jobreaper.models import Job
from jobreaper.runs import Tally, call, run_due
from jobreaper.tables import table_of
from jobreaper.work import Worker
from tests.committed import FOREIGN_CLIENT
from tests.rows import Rows, Sql, ago
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


def once(**options: Any) -> Tally:
    return Worker(**options).run(once=True)


@job_handler("idle")
def idle(job: Any, lease: Any) -> None: ...


@pytest.fixture(autouse=True)
def _idle() -> None:
    job_handler("idle")(idle)


@pytest.fixture
def working() -> Any:
    """Start a worker in a thread; it is told to stop, and ends, when the test does."""
    started: list[tuple[Worker, threading.Thread]] = []

    def run(worker: Worker) -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    def start(**options: Any) -> Worker:
        worker = Worker(**{"poll_sec": 0.05, **options})
        thread = threading.Thread(target=run, args=[worker])
        thread.start()
        started.append((worker, thread))
        return worker

    yield start
    for worker, thread in started:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


class Gate:
    """A handler that reports each job and waits until it is let go on."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.open = threading.Event()

    def __call__(self, job: Any, lease: Any) -> None:
        self.entered.append(job.pk)
        assert self.open.wait(20)


@pytest.fixture
def gate(working: Any) -> Any:
    gate = Gate()
    job_handler("gate")(gate)
    yield gate
    gate.open.set()


# How jobs end.


@pytest.mark.parametrize("n", [1, 2, 700])
def test_what_is_due_is_run_once_and_finished(n: int, jobs: Rows) -> None:
    made = enqueue_many(({"payload": {"n": i}} for i in range(n)), type="idle").ids
    assert once(batch=100) == Tally(claimed=n, succeeded=n)
    rows = jobs.all()
    assert {row["status"] for row in rows.values()} == {"success"}
    assert {(row["attempt_count"], row["locked_by"]) for row in rows.values()} == {(1, None)}
    [events] = jobs.sql(
        "SELECT count(*), count(DISTINCT job_id) AS jobs FROM job_events"
        " WHERE type = 'job:finished'"
    )
    assert events == {"count": n, "jobs": n}
    assert jobs.event_types(made[0]) == ["job:enqueued", "job:finished"]


def test_a_handler_that_raises_fails_its_own_job_and_no_other(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("odd")
    def odd(job: Any, lease: Any) -> None:
        if job.payload["n"] % 2:
            raise ValueError(f"{job.payload['n']} is odd")

    made = enqueue_many(({"payload": {"n": n}} for n in range(6)), type="odd", max_attempts=1).ids
    assert once() == Tally(claimed=6, succeeded=3, failed=3)
    row = jobs.row(made[3])
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "failed",
        "ValueError",
        "3 is odd",
    )
    told = [record for record in caplog.records if record.name == "jobreaper.runs"]
    assert len(told) == 3
    assert all(record.exc_info for record in told)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("odd")])
def test_a_handler_that_exits_fails_its_job_and_does_not_end_the_worker(
    error: BaseException, jobs: Rows
) -> None:
    @job_handler("exits")
    def exits(job: Any, lease: Any) -> None:
        raise error

    job, other = enqueue("exits", max_attempts=1), enqueue("idle")
    assert once() == Tally(claimed=2, succeeded=1, failed=1)
    assert jobs.row(job.pk)["fail_code"] == type(error).__name__
    assert jobs.row(other.pk)["status"] == "success"


@pytest.mark.parametrize("run_all", [once, lambda: run_due(4, 60)])
@pytest.mark.parametrize("moment", [signals.run_started, signals.run_ended])
def test_a_receiver_that_exits_fails_the_job_and_does_not_end_the_worker(
    moment: Any, run_all: Any, jobs: Rows
) -> None:
    def exits(lease: Any, **_: Any) -> None:
        if lease.pk == job.pk:
            raise SystemExit

    job, others = enqueue("idle", max_attempts=1), enqueue_many([{}] * 3, type="idle").ids
    moment.connect(exits)
    try:
        assert run_all() == Tally(claimed=4, succeeded=3, failed=1)
    finally:
        moment.disconnect(exits)
    assert jobs.row(job.pk)["fail_code"] == "SystemExit"
    assert {jobs.row(pk)["status"] for pk in others} == {"success"}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_whose_thread_ends_gives_back_what_it_holds_and_ends_with_an_error(
    concurrency: int, jobs: Rows
) -> None:
    def fail_to_close() -> None:
        raise MemoryError

    @job_handler("breaks")
    def break_thread(job: Any, lease: Any) -> None:
        connections["default"].close_if_unusable_or_obsolete = fail_to_close  # type: ignore
        raise ValueError

    enqueue_many([{}] * 300, type="idle")
    broken = enqueue("breaks", max_attempts=1)
    enqueue_many([{}] * 300, type="idle")
    worker = Worker(concurrency=concurrency)
    with pytest.raises(RuntimeError, match="a thread that ran handlers has ended"):
        worker.run()
    assert jobs.row(broken.pk)["fail_code"] == "ValueError"
    assert not jobs.sql("SELECT 1 FROM jobreaper_jobs WHERE status = 'processing'")
    assert not heartbeat.heart._leases


class TakenMeanwhile(deque[Any]):
    """Empty as soon as it was looked at, as where another thread ends the same jobs."""

    def __len__(self) -> int:
        length = super().__len__()
        self.clear()
        return length


def test_jobs_that_another_thread_takes_meanwhile_are_ended_by_that_one() -> None:
    enqueue("idle")
    worker = Worker(batch=1)
    worker._done = TakenMeanwhile(take(1))
    worker._end_done()
    assert worker.tally == Tally()


async def never_awaited(job: Any, lease: Any) -> None: ...


async def never_iterated(job: Any, lease: Any) -> Any:
    yield


def never_begun(job: Any, lease: Any) -> Iterator[None]:
    yield


class Awaitable:
    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (never_awaited, "is async"),
        (never_iterated, "is async"),
        (lambda job, lease: Awaitable(), "is async"),
        (never_begun, "has a yield"),
    ],
)
def test_a_handler_that_has_not_run_does_not_count_as_done(
    handler: Any, why: str, jobs: Rows
) -> None:
    job_handler("unrun")(handler)
    job = enqueue("unrun", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    assert f"did not run: it {why}" in jobs.row(job.pk)["fail_reason"]


def test_a_handler_may_finish_in_its_own_transaction(jobs: Rows) -> None:
    @job_handler("exact")
    def exact(job: Any, lease: Any) -> None:
        with transaction.atomic():
            Job.objects.filter(pk=job.pk).update(org_id="written")
            lease.finish()

    job = enqueue("exact")
    assert once() == Tally(claimed=1, succeeded=1)
    row = jobs.row(job.pk)
    assert (row["status"], row["org_id"]) == ("success", "written")
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:finished"]


def test_a_finish_that_was_rolled_back_does_not_count(jobs: Rows) -> None:
    @job_handler("undone")
    def undone(job: Any, lease: Any) -> None:
        with transaction.atomic():
            lease.finish()
            raise ValueError("no")

    job = enqueue("undone", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    assert jobs.row(job.pk)["status"] == "failed"


@pytest.mark.parametrize("run_all", [once, lambda: run_due(1, 60)])
@pytest.mark.parametrize(
    ("verb", "status", "outcome"),
    [
        ("finish", "success", "succeeded"),
        ("fail", "queued", "failed"),
        ("release", "queued", "released"),
    ],
)
def test_a_job_that_its_handler_has_ended_is_counted_by_how_it_did(
    verb: str, status: str, outcome: str, run_all: Any, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("own")
    def own(job: Any, lease: Any) -> None:
        lease.fail("E", delay_sec=60) if verb == "fail" else getattr(lease, verb)()
        pause("own")
        raise ValueError("after its end")

    job = enqueue("own")
    tally = run_all()
    assert tally == Tally(claimed=1, **{outcome: 1})
    assert jobs.row(job.pk)["status"] == status
    [told] = [record for record in caplog.records if record.name == "jobreaper.runs"]
    assert told.exc_info


@pytest.mark.parametrize("run_all", [once, lambda: run_due(1, 60)])
@pytest.mark.parametrize("verb", ["finish", "release"])
def test_a_job_that_was_ended_in_a_transaction_left_open_has_not_ended(
    verb: str, run_all: Any, jobs: Rows
) -> None:
    @job_handler("open")
    def end_and_leave_open(job: Any, lease: Any) -> None:
        begin()
        Job.objects.filter(pk=job.pk).update(org_id="undone")
        getattr(lease, verb)()

    job = enqueue("open", max_attempts=1)
    assert run_all() == Tally(claimed=1, failed=1)
    row = jobs.row(job.pk)
    assert (row["status"], row["fail_code"], row["org_id"]) == ("failed", "OpenTransaction", None)
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:failed"]
    assert not heartbeat.heart._leases


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_an_exception_that_exits_when_it_is_put_into_words_fails_its_job(jobs: Rows) -> None:
    @job_handler("raises")
    def raises(job: Any, lease: Any) -> None:
        raise Unspeakable

    job = enqueue("raises", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    row = jobs.row(job.pk)
    assert (row["fail_code"], row["fail_reason"]) == ("Unspeakable", "<unprintable Unspeakable>")


def test_a_retry_is_run_when_its_time_comes(jobs: Rows) -> None:
    tries: list[int] = []

    @job_handler("third")
    def third(job: Any, lease: Any) -> None:
        tries.append(job.attempt_count)
        if len(tries) < 3:
            raise ValueError

    job = enqueue("third")
    for _ in range(3):
        jobs.set(job.pk, next_earliest_run_at=ago(1))
        once()
    assert tries == [1, 2, 3]
    assert jobs.row(job.pk)["status"] == "success"


def test_a_job_taken_away_while_it_runs_is_lost_and_that_is_on_record(jobs: Rows) -> None:
    @job_handler("cancelled")
    def cancelled(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="ann")

    @job_handler("fine")
    def fine(job: Any, lease: Any) -> None: ...

    lost, other = enqueue("cancelled"), enqueue("fine")
    assert once() == Tally(claimed=2, succeeded=1, lost=1)
    assert jobs.row(lost.pk)["status"] == "cancelled"
    assert jobs.event_types(lost.pk)[-1] == "job:stale_write_rejected"
    assert jobs.row(other.pk)["status"] == "success"


def test_a_handler_that_sees_its_lease_lost_and_stops_fails_nothing(jobs: Rows) -> None:
    @job_handler("stops")
    def stops(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="ann")
        lease.heartbeat()

    job = enqueue("stops")
    assert once() == Tally(claimed=1, lost=1)
    assert jobs.event_types(job.pk) == ["job:enqueued", "admin:cancelled"]


def test_jobs_that_handlers_enqueue_are_run_too() -> None:
    @job_handler("chain")
    def chain(job: Any, lease: Any) -> None:
        if job.payload["n"]:
            enqueue("chain", {"n": job.payload["n"] - 1})

    enqueue("chain", {"n": 5})
    assert once().succeeded == 6


def test_a_handlers_broken_connection_is_replaced(sql: Sql, jobs: Rows) -> None:
    """celery#4878: Django's own recycling does not run outside requests."""

    @job_handler("breaks")
    def breaks(job: Any, lease: Any) -> None:
        connection.ensure_connection()
        if job.payload["n"] == 0:
            sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
        Job.objects.filter(pk=job.pk).update(org_id="seen")

    enqueue_many(({"payload": {"n": n}} for n in range(3)), type="breaks", max_attempts=1)
    assert once() == Tally(claimed=3, succeeded=2, failed=1)


# What is claimed.


def begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


LEFT_OPEN: list[Any] = []


def enter_atomic() -> None:
    LEFT_OPEN.append(transaction.atomic())
    LEFT_OPEN[-1].__enter__()


def suspend_in_atomic() -> None:
    def steps() -> Iterator[None]:
        with transaction.atomic(), transaction.atomic():
            yield

    LEFT_OPEN.append(steps())
    next(LEFT_OPEN[-1])


def close_in_atomic() -> None:
    enter_atomic()
    Job.objects.exists()
    connection.close()


def break_in_atomic() -> None:
    enter_atomic()
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


# A generator that is collected ends its block in an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "leave_open",
    [
        begin,
        lambda: transaction.set_autocommit(False),
        enter_atomic,
        suspend_in_atomic,
        close_in_atomic,
        break_in_atomic,
    ],
)
def test_a_transaction_that_a_handler_leaves_open_fails_its_job_and_swallows_no_others_writes(
    leave_open: Callable[[], None], sql: Sql, jobs: Rows
) -> None:
    @job_handler("open")
    def open(job: Any, lease: Any) -> None:
        leave_open()
        with suppress(Error):
            Job.objects.filter(pk=job.pk).update(org_id="undone")

    @job_handler("effect")
    def write(job: Any, lease: Any) -> None:
        Job.objects.filter(pk=job.pk).update(org_id="written")

    opened = enqueue("open", max_attempts=1)
    written = enqueue_many([{}] * 3, type="effect").ids
    once()
    LEFT_OPEN.clear()
    row = jobs.row(opened.pk)
    assert (row["status"], row["fail_code"], row["org_id"]) == ("failed", "OpenTransaction", None)
    rows = [jobs.row(pk) for pk in written]
    assert [(row["status"], row["org_id"]) for row in rows] == [("success", "written")] * 3


@pytest.mark.parametrize("leave_open", [enter_atomic, suspend_in_atomic])
def test_an_atomic_that_is_left_after_all_ends_no_other_jobs_transaction(
    leave_open: Callable[[], None], jobs: Rows
) -> None:
    """As where a generator is collected at any later time."""

    @job_handler("open")
    def open(job: Any, lease: Any) -> None:
        leave_open()

    raised: list[Exception] = []

    @job_handler("effect")
    def write(job: Any, lease: Any) -> None:
        with transaction.atomic():
            Job.objects.filter(pk=job.pk).update(org_id="written")
            left = LEFT_OPEN.pop()
            try:
                left.close() if isinstance(left, Generator) else left.__exit__(None, None, None)
            except ConnectionDoesNotExist as error:
                raised.append(error)
            Job.objects.filter(pk=job.pk).update(priority=7)

    enqueue("open", max_attempts=1)
    written = enqueue("effect")
    once()
    assert "atomic() that was left open" in str(raised[0])
    row = jobs.row(written.pk)
    assert (row["status"], row["org_id"], row["priority"]) == ("success", "written", 7)


@pytest.mark.parametrize("nested", [1, 2])
def test_in_a_transaction_of_the_callers_a_handler_undoes_no_more_than_its_own(
    nested: int, jobs: Rows
) -> None:
    """As in a TestCase, whose transaction must be the one it was."""

    @job_handler("open")
    def leave_open(job: Any, lease: Any) -> None:
        for _ in range(nested):
            enter_atomic()
        Job.objects.filter(pk=job.pk).update(org_id="undone")

    with transaction.atomic(), transaction.atomic():
        job, other = enqueue("open", max_attempts=1), enqueue("idle")
        assert run_due(2, 60) == Tally(claimed=2, succeeded=1, failed=1)
    row = jobs.row(job.pk)
    assert (row["status"], row["fail_code"], row["org_id"]) == ("failed", "OpenTransaction", None)
    assert jobs.row(other.pk)["status"] == "success"


def test_out_of_autocommit_a_handler_that_commits_has_done_its_job(jobs: Rows) -> None:
    @job_handler("by-hand")
    def commit_by_hand(job: Any, lease: Any) -> None:
        transaction.set_autocommit(False)
        Job.objects.filter(pk=job.pk).update(org_id="written")
        transaction.commit()

    made = enqueue_many([{}] * 3, type="by-hand").ids
    assert once().succeeded == 3
    assert {jobs.row(pk)["org_id"] for pk in made} == {"written"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (SystemExit(3), 3), (SystemExit(), 0), (ValueError(), 1)]
)
def test_a_process_that_a_handler_forks_ends_with_the_handler_and_is_no_second_worker(
    error: BaseException | None, code: int
) -> None:
    parent = os.getpid()
    children: list[int] = []

    def fork(job: Any, lease: Any) -> None:
        children.append(os.fork())
        if children[-1] == 0 and error is not None:
            raise error

    enqueue("idle")
    [run] = claim_group(table_of(Job), 1)
    assert call(fork, run.lease) is None
    if os.getpid() != parent:
        os._exit(99)
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == code
    assert finish_group([run]).ended == [run]


def test_with_debug_a_worker_does_not_keep_every_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections["default"], "force_debug_cursor", True)
    enqueue_many([{}] * 20, type="idle")
    assert once(batch=1).succeeded == 20
    assert len(connection.queries_log) < 10


def test_a_type_without_a_handler_waits_unharmed_and_is_named(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    job = enqueue("nobodys")
    before = jobs.row(job.pk)
    assert once() == Tally()
    assert jobs.row(job.pk) == before
    assert "no handler for these types, whose jobs wait: {'nobodys': 1}" in caplog.messages


def test_only_the_types_and_stages_asked_for_are_run(jobs: Rows) -> None:
    job_handler("other")(lambda job, lease: None)
    mine, other, elsewhere = enqueue("idle"), enqueue("other"), enqueue("idle", stage="elsewhere")
    assert once(types=["idle"], stages=["idle"]).claimed == 1
    assert jobs.row(mine.pk)["status"] == "success"
    assert {jobs.row(job.pk)["status"] for job in (other, elsewhere)} == {"queued"}


def test_what_is_paused_scheduled_or_of_another_table_is_left(jobs: Rows) -> None:
    enqueue("idle")
    jobs.plant(type="idle", next_earliest_run_at=ago(-60))
    pause("idle")
    assert once() == Tally()


@override_settings(JOBREAPER={"STAGES": {"gate": {"max_running": 1}}})
def test_max_running_holds_for_threads_as_well(gate: Gate, working: Any) -> None:
    enqueue_many([{}] * 3, type="gate")
    enqueue_many([{}] * 3, type="idle")
    worker = working(concurrency=3)
    until(lambda: worker.tally.succeeded == 3)
    assert len(gate.entered) == 1
    gate.open.set()
    until(lambda: worker.tally.succeeded == 6)


@override_settings(JOBREAPER={"STAGES": {"one-by-one": {"max_running": 1}}})
def test_the_next_job_of_a_full_stage_is_claimed_when_one_ends_and_not_when_it_is_time_to_look(
    working: Any,
) -> None:
    @job_handler("one-by-one")
    def run(job: Any, lease: Any) -> None:
        if job.payload.get("fails"):
            raise ValueError

    enqueue_many(
        ({"payload": {"fails": n % 3 == 0}} for n in range(9)), max_attempts=1, type="one-by-one"
    )
    worker = working(poll_sec=600, listen=False)
    until(lambda: (worker.tally.succeeded, worker.tally.failed) == (6, 3))


def test_threads_run_side_by_side(working: Any) -> None:
    meet = threading.Barrier(3)
    job_handler("meets")(lambda job, lease: meet.wait(20) and None)
    enqueue_many([{}] * 6, type="meets")
    worker = working(concurrency=3)
    until(lambda: worker.tally.succeeded == 6)


def test_a_slow_job_is_claimed_alone(gate: Gate, working: Any, jobs: Rows) -> None:
    enqueue_many([{}] * 20, type="gate")
    working()
    until(lambda: gate.entered)
    [running] = jobs.sql("SELECT count(*) FROM jobreaper_jobs WHERE status = 'processing'")
    assert running == {"count": 1}


def test_a_job_that_takes_longer_than_thought_does_not_keep_others_from_other_workers(
    gate: Gate, working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.work.LONGEST_WAIT_SEC", 0.2)
    enqueue_many([{}] * 40, type="idle")
    enqueue_many([{}], type="gate")
    behind = enqueue_many([{}] * 10, type="idle").ids
    worker = working()
    until(lambda: gate.entered)
    until(lambda: worker.tally.succeeded == 40)
    # All were claimed together, by the pace of those before; what waits is given back.
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"queued"})
    assert {jobs.row(pk)["attempt_count"] for pk in behind} == {0}
    other = working()
    until(lambda: other.tally.succeeded == 10)


def test_jobs_of_which_none_is_slow_do_not_keep_a_long_line_from_other_workers(
    working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.work.LONGEST_WAIT_SEC", 0.5)
    moment = threading.Event()
    job_handler("short")(lambda job, lease: moment.wait(0.1) and None)
    enqueue_many([{}] * 200, type="idle")
    enqueue_many([{}] * 100, type="short")
    worker = working()
    until(lambda: worker.tally.released > 50)
    moment.set()
    until(lambda: worker.tally.succeeded == 300)
    [line] = jobs.sql("SELECT count(*) FROM job_events WHERE type = 'job:released'")
    assert line == {"count": worker.tally.released}


def test_a_job_that_waits_for_its_turn_is_given_back_long_before_its_deadline(
    gate: Gate, working: Any, jobs: Rows
) -> None:
    """No healthy job is reaped: max_runtime begins with the claim."""
    enqueue_many([{}] * 400, type="idle")
    enqueue_many([{}], type="gate")
    behind = enqueue_many([{}] * 400, type="idle", stage="hasty").ids
    with override_settings(JOBREAPER={"STAGES": {"hasty": {"max_runtime": 2}}}):
        worker = working()
        until(lambda: gate.entered)
        until(lambda: worker.tally.released)
    [waited] = jobs.sql(
        "SELECT max(at - (data -> 'details' ->> 'claimed_at')::timestamptz) AS longest"
        " FROM job_events WHERE type = 'job:released'"
    )
    assert waited["longest"].total_seconds() < 1.5
    assert {jobs.row(pk)["attempt_count"] for pk in behind} == {0}


def test_a_worker_is_woken_by_what_is_enqueued(working: Any) -> None:
    worker = working(poll_sec=600)
    until(lambda: worker._next_claim > 0)
    until(listens)
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 1)


def listens() -> bool:
    return bool(listeners())


def listeners() -> list[int]:
    """The sessions that listen in this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND query = 'LISTEN \"jobreaper_jobs\"'"
        )
        return [pid for (pid,) in cursor.fetchall()]


def test_a_worker_that_hears_nothing_finds_its_jobs_by_looking(working: Any, jobs: Rows) -> None:
    """pulpcore#2506: a notification is missed, and work waits beside an idle worker."""
    worker = working(listen=False)
    jobs.plant(type="idle", next_earliest_run_at=ago(1))
    until(lambda: worker.tally.succeeded == 1)


def test_a_listener_whose_session_ends_listens_again(working: Any, sql: Sql) -> None:
    worker = working()
    until(listens)
    [listener] = listeners()
    sql("SELECT pg_terminate_backend(%s, 5000)", listener)
    until(lambda: listeners() not in ([], [listener]))
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 1)


# The lease.


def test_everything_in_hand_is_beaten_and_nothing_after_its_end(
    gate: Gate, working: Any, jobs: Rows
) -> None:
    """No healthy job is reaped: one that takes many leases runs to its end, once."""
    with override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 0.6, "HEARTBEAT_SEC": 0.1}):
        job = enqueue("gate")
        worker = working()
        until(lambda: gate.entered)
        first = jobs.row(job.pk)["lease_expires_at"]
        until(lambda: jobs.now() > first)
        assert reap([Job]).requeued == 0
        gate.open.set()
        until(lambda: worker.tally.succeeded == 1)
    until(lambda: not heartbeat.heart._leases)
    assert gate.entered == [job.pk]


def test_a_job_that_was_reaped_while_it_waited_for_its_turn_is_not_run(
    gate: Gate, working: Any, jobs: Rows
) -> None:
    [first] = enqueue_many([{}], type="gate").ids
    runs = claim_group(table_of(Job), 1, types=["gate"])
    assert [run.lease.pk for run in runs] == [first]
    cancel(Job, [first], by="ann")
    until(lambda: _lost_after_beat(runs[0].lease))
    worker = Worker()
    worker._in_hand.update(runs)
    worker._waiting.put(runs[0])
    worker._waiting.put(None)
    worker._run_jobs()
    worker._end_done()
    assert gate.entered == []
    assert worker.tally == Tally(lost=1)


def _lost_after_beat(lease: Any) -> bool:
    try:
        lease.heartbeat()
    except Exception:
        return True
    return False


def test_a_failing_job_that_somebody_has_locked_keeps_no_other_waiting(
    gate: Gate, working: Any, jobs: Rows, second_connection: Any
) -> None:
    @job_handler("raises")
    def raises(job: Any, lease: Any) -> None:
        gate(job, lease)
        raise ValueError

    job = enqueue("raises", max_attempts=1)
    worker = working()
    until(lambda: gate.entered)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [job.pk])
    gate.open.set()
    enqueue_many([{}] * 20, type="idle")
    until(lambda: worker.tally.succeeded == 20)
    assert worker.tally.failed == 0
    second_connection.rollback()
    until(lambda: worker.tally.failed == 1)
    assert jobs.row(job.pk)["fail_code"] == "ValueError"


def test_a_job_to_be_given_back_that_somebody_has_locked_is_kept_until_it_is_free(
    gate: Gate, working: Any, jobs: Rows, second_connection: Any
) -> None:
    """As our own heartbeat does, in the moment that the worker is told to stop."""
    enqueue_many([{}] * 400, type="idle")
    enqueue("gate")
    behind = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: worker.tally.succeeded == 400)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", behind[:1])
    worker.stop()
    until(lambda: worker.tally.released == 4)
    assert {lease.key for lease in heartbeat.heart._leases} == {behind[0], *gate.entered}
    second_connection.rollback()
    until(lambda: worker.tally.released == 5)
    assert jobs.row(behind[0])["attempt_count"] == 0
    assert worker.tally.lost == 0


def test_told_to_stop_a_worker_ends_what_runs_and_gives_the_rest_back(
    gate: Gate, working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is not the waiting behind a slow job that gives them back.
    monkeypatch.setattr("jobreaper.work.LONGEST_WAIT_SEC", 600)
    enqueue_many([{}] * 30, type="idle")
    [running] = enqueue_many([{}], type="gate").ids
    waiting = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: gate.entered)
    until(lambda: worker.tally.succeeded == 30)
    worker.stop()
    until(lambda: worker.tally.released == 5)
    assert {jobs.row(pk)["status"] for pk in waiting} == {"queued"}
    assert {jobs.row(pk)["attempt_count"] for pk in waiting} == {0}
    assert jobs.row(running)["status"] == "processing"
    gate.open.set()
    until(lambda: worker.tally.succeeded == 31)


def test_what_was_done_while_the_database_was_away_is_finished_when_it_is_back(
    working: Any, jobs: Rows, sql: Sql, gate: Gate
) -> None:
    job = enqueue("gate")
    worker = working()
    until(lambda: gate.entered)
    sql("ALTER TABLE jobreaper_jobs RENAME COLUMN finished_at TO away")
    try:
        gate.open.set()
        until(lambda: worker._done)
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO finished_at")
    until(lambda: worker.tally.succeeded == 1)
    assert jobs.row(job.pk)["status"] == "success"


@contextmanager
def database_away(sql: Sql, dsn: str) -> Iterator[None]:
    """Every session but those of foreign clients has ended, and none can begin."""
    [own] = sql("SELECT current_database() AS name")
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as elsewhere:
        allow = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
        name = Identifier(own["name"])
        elsewhere.execute(allow(name, SQL("false")))
        try:
            sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name <> %s",
                FOREIGN_CLIENT,
            )
            yield
        finally:
            elsewhere.execute(allow(name, SQL("true")))
            connection.close()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_of_jobs_that_wait_in_an_outage_none_is_started_in_vain(
    concurrency: int,
    gate: Gate,
    working: Any,
    jobs: Rows,
    sql: Sql,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobreaper.work.LONGEST_WAIT_SEC", 600)

    @job_handler("write")
    def write(job: Any, lease: Any) -> None:
        if job.payload.get("first"):
            gate(job, lease)
        try:
            Job.objects.filter(pk=job.pk).update(org_id="written")
        except Error as error:
            raise ValueError("not written") from error

    enqueue_many([{}] * 400, type="idle")
    enqueue_many([{"payload": {"first": True}}] * concurrency, type="write", max_attempts=1)
    behind = enqueue_many([{}] * 50, type="write", max_attempts=1).ids
    worker = working(concurrency=concurrency)
    until(lambda: len(gate.entered) == concurrency)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    with database_away(sql, dsn):
        gate.open.set()
        until(lambda: sum(run.error is not None for run in list(worker._done)) == concurrency)
        assert worker._waiting.qsize() == len(behind)
    until(lambda: worker.tally.succeeded == 450)
    assert worker.tally.failed == concurrency
    assert {jobs.row(pk)["org_id"] for pk in behind} == {"written"}


def test_told_to_stop_in_an_outage_a_worker_leaves_what_it_holds_to_the_leases(
    gate: Gate, working: Any, jobs: Rows, sql: Sql, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.work.LAST_TRIES_SEC", 0.3)
    enqueue_many([{}] * 400, type="idle")
    [running] = enqueue_many([{}], type="gate").ids
    behind = enqueue_many([{}] * 5, type="idle").ids
    worker = working()
    until(lambda: worker.tally.succeeded == 400)
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"processing"})
    with database_away(sql, dsn):
        worker.stop()
        # What runs comes to its end all the same.
        until(lambda: worker._unwanted or not worker._reachable.is_set())
        assert not worker._gave_up
        gate.open.set()
        until(lambda: worker.left_behind == 6)
    assert not heartbeat.heart._leases
    assert {jobs.row(pk)["status"] for pk in (running, *behind)} == {"processing"}


def test_after_an_error_a_worker_that_runs_once_starts_no_job_that_it_could_not_end(
    jobs: Rows, sql: Sql
) -> None:
    started: list[Any] = []
    moment = threading.Event()

    @job_handler("breaks")
    def break_table(job: Any, lease: Any) -> None:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN finished_at TO away")

    @job_handler("slow")
    def note(job: Any, lease: Any) -> None:
        started.append(job.pk)
        moment.wait(0.1)

    enqueue_many([{}] * 400, type="idle")
    enqueue("breaks")
    behind = enqueue_many([{}] * 50, type="slow").ids
    try:
        with pytest.raises(Error):
            once()
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO finished_at")
    not_started = set(behind) - set(started)
    assert not_started
    assert {jobs.row(pk)["status"] for pk in not_started} == {"queued"}


# Groups.


def take(n: int) -> Any:
    runs = claim_group(table_of(Job), n, types=["idle"])
    assert len(runs) == n
    for run in runs:
        run.started_at, run.ended_at = run.claimed_at + 1, run.claimed_at + 3
    return runs


def test_of_a_group_each_job_ends_by_its_own_lease(jobs: Rows) -> None:
    made = enqueue_many([{}] * 4, type="idle").ids
    runs = take(4)
    cancel(Job, [made[0]], by="ann")
    jobs.set(made[1], lease_expires_at=ago(1))
    reap([Job])
    ending = finish_group(runs)
    assert [run.lease.pk for run in ending.lost] == made[:2]
    assert [run.lease.pk for run in ending.ended] == made[2:]
    assert all(run.lease.closed for run in ending.ended)
    assert all(run.lease.lost for run in ending.lost)
    assert [jobs.row(pk)["status"] for pk in made] == ["cancelled", "queued", "success", "success"]
    assert [jobs.event_types(pk)[-1] for pk in made] == [
        "job:stale_write_rejected",
        "job:stale_write_rejected",
        "job:finished",
        "job:finished",
    ]
    # A second try of the same group writes nothing.
    assert finish_group(runs).ended == []


def test_a_lease_that_this_worker_has_taken_anew_is_not_ended_by_the_old_one(jobs: Rows) -> None:
    job = enqueue("idle")
    old = take(1)
    jobs.set(job.pk, lease_expires_at=ago(1))
    reap([Job])
    jobs.set(job.pk, next_earliest_run_at=ago(1))
    new = take(1)
    assert finish_group(old).lost == old
    assert jobs.row(job.pk)["status"] == "processing"
    assert finish_group(new).ended == new


def test_a_job_locked_by_somebody_keeps_the_others_of_its_group_waiting_no_moment(
    jobs: Rows, second_connection: Any
) -> None:
    made = enqueue_many([{}] * 3, type="idle").ids
    runs = take(3)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [made[1]])
    ending = finish_group(runs)
    assert [run.lease.pk for run in ending.ended] == [made[0], made[2]]
    assert [run.lease.pk for run in ending.locked] == [made[1]]
    second_connection.rollback()
    assert finish_group(ending.locked).ended == ending.locked
    assert jobs.row(made[1])["status"] == "success"


def test_a_group_given_back_costs_no_attempt(jobs: Rows) -> None:
    made = enqueue_many([{}] * 2, type="idle").ids
    heard: list[Any] = []

    def note(lease: Any, details: Any, **_: Any) -> None:
        heard.append((lease.pk, details["attempt"]))

    signals.job_released.connect(note)
    try:
        assert len(release_group(take(2)).ended) == 2
    finally:
        signals.job_released.disconnect(note)
    assert heard == [(pk, 1) for pk in made]
    for pk in made:
        assert (jobs.row(pk)["status"], jobs.row(pk)["attempt_count"]) == ("queued", 0)
        assert jobs.event_types(pk) == ["job:enqueued", "job:released"]


def test_the_event_of_a_job_in_a_group_says_how_long_it_waited_and_ran(jobs: Rows) -> None:
    job = enqueue("idle", org_id="acme")
    jobs.set(job.pk, next_earliest_run_at=ago(60))
    finish_group(take(1))
    [_, event] = jobs.events(job.pk)
    details = event["details"]
    assert details["duration_ms"] == 2000
    assert 61_000 <= details["queue_wait_ms"] < 90_000
    assert (details["org_id"], details["type"], details["attempt"]) == ("acme", "idle", 1)
    assert details["locked_by"]


def test_of_a_group_that_failed_each_goes_back_or_fails_by_its_own_error(jobs: Rows) -> None:
    retried, failed, locked, lost = made = [
        enqueue("idle", max_attempts=n, org_id="acme").pk for n in (2, 1, 1, 1)
    ]
    runs = take(4)
    errors = [ValueError("a\x00b"), KeyError("c"), ValueError(), ValueError()]
    for run, error in zip(runs, errors, strict=True):
        run.error = error
    cancel(Job, [lost], by="ann")
    jobs.sql("BEGIN")
    jobs.sql("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", locked)
    ending = fail_group(runs)
    jobs.sql("ROLLBACK")
    assert [
        [run.lease.pk for run in part] for part in (ending.ended, ending.locked, ending.lost)
    ] == [
        [retried, failed],
        [locked],
        [lost],
    ]
    rows = [jobs.row(pk) for pk in made]
    assert [(row["status"], row["fail_code"], row["fail_reason"]) for row in rows[:2]] == [
        ("queued", "ValueError", "a\\x00b"),
        ("failed", "KeyError", "'c'"),
    ]
    assert rows[2]["status"] == "processing"
    [_, event] = jobs.events(failed)
    assert event["type"] == "job:failed"
    assert (event["details"]["duration_ms"], event["details"]["fail_code"]) == (2000, "KeyError")
    assert event["details"]["queue_wait_ms"] >= 1000
    assert jobs.event_types(lost)[-1] == "job:stale_write_rejected"
    assert fail_group(ending.locked).ended == ending.locked


@pytest.mark.parametrize("verb", ["finish", "fail", "release"])
def test_a_job_that_its_handler_ends_is_not_charged_for_the_wait_before_its_turn(
    verb: str, jobs: Rows
) -> None:
    @job_handler("ends")
    def end(job: Any, lease: Any) -> None:
        lease.fail("E") if verb == "fail" else getattr(lease, verb)()

    job = enqueue("ends")
    [run] = claim_group(table_of(Job), 1, types=["ends"])
    jobs.set(job.pk, claimed_at=ago(60))
    run.claimed_at -= 60
    worker = Worker()
    worker._waiting.put(run)
    worker._waiting.put(None)
    worker._run_jobs()
    details = jobs.events(job.pk)[-1]["details"]
    assert 0 <= details["duration_ms"] < 30_000
    assert 60_000 <= details["queue_wait_ms"] < 90_000


@pytest.mark.parametrize("uid", [None, "jobreaper.shop"])
def test_who_listens_for_each_job_hears_of_each(uid: str | None, jobs: Rows) -> None:
    made = enqueue_many([{}] * 3, type="idle").ids
    heard: list[Any] = []

    def claimed(lease: Any, **_: Any) -> None:
        heard.append(("claimed", lease.pk))

    def finished(lease: Any, details: Any, **_: Any) -> None:
        heard.append(("finished", lease.pk, details["duration_ms"]))

    listened_to = [signals.job_claimed, signals.job_finished]
    assert not any(map(signals.wanted_one_by_one, listened_to)), "only the package listens"
    signals.job_claimed.connect(claimed, dispatch_uid=uid)
    signals.job_finished.connect(finished, dispatch_uid=uid)
    try:
        finish_group(take(3))
    finally:
        signals.job_claimed.disconnect(claimed, dispatch_uid=uid)
        signals.job_finished.disconnect(finished, dispatch_uid=uid)
    assert heard == [("claimed", pk) for pk in made] + [("finished", pk, 2000) for pk in made]


def test_each_run_is_announced_once_at_its_start_and_at_its_end(jobs: Rows) -> None:
    made = enqueue_many([{}] * 2, type="idle").ids
    heard: list[Any] = []

    def started(lease: Any, **_: Any) -> None:
        heard.append(("started", lease.pk))

    def ended(lease: Any, error: Any, **_: Any) -> None:
        heard.append(("ended", lease.pk, error))

    signals.run_started.connect(started)
    signals.run_ended.connect(ended)
    try:
        once()
    finally:
        signals.run_started.disconnect(started)
        signals.run_ended.disconnect(ended)
    assert heard == [note for pk in made for note in (("started", pk), ("ended", pk, None))]


def test_a_batch_is_one_line_in_the_log_and_a_line_a_job_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "jobreaper.leases")
    enqueue_many([{}] * 3, type="idle")
    caplog.clear()
    finish_group(take(3))
    assert [line.split()[:3:2] for line in caplog.messages] == [
        ["jobs_claimed", "count=3"],
        ["jobs_finished", "count=3"],
    ]
    caplog.clear()
    enqueue_many([{}] * 2, type="idle")
    caplog.set_level(logging.DEBUG, "jobreaper.leases")
    finish_group(take(2))
    events = [line.split()[0] for line in caplog.messages if line.startswith("job_")]
    assert events == ["job_claimed"] * 2 + ["job_finished"] * 2


def test_a_finish_whose_answer_was_lost_counts_once(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    """The connection ends after the commit and before the answer."""
    from jobreaper import lease_groups

    job = enqueue("idle")
    runs = take(1)
    fetch: Callable[..., Any] = lease_groups.fetch  # type: ignore[attr-defined]
    answers = iter([True, False])

    def fetch_and_lose(*args: Any) -> Any:
        rows = fetch(*args)
        if next(answers):
            sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
            Job.objects.exists()
        return rows

    monkeypatch.setattr(lease_groups, "fetch", fetch_and_lose)
    assert finish_group(runs).ended == runs
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:finished"]
