"""What a handler leaves behind: transactions, forked processes, statements."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import Error, connection, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from jobreaper import enqueue, enqueue_many, job_handler
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.queue.runs import Tally, call, run_due
from jobreaper.tables import table_of
from tests.queue.working import once
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


LEFT_OPEN: list[Any] = []


def begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


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
