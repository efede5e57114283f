"""What a function leaves behind: transactions and forked processes."""

import os
from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction

from jobreaper.exceptions import OpenTransaction
from jobreaper.models import Job
from jobreaper.states import EventType, Status
from tests.celery.brokers import declare
from tests.celery.conftest import Run
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


def begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; SELECT 1")


LEFT_OPEN: list[Any] = []


def enter_atomic() -> None:
    LEFT_OPEN.append(transaction.atomic())
    LEFT_OPEN[-1].__enter__()


@pytest.mark.parametrize(
    "leave_open", [begin, lambda: transaction.set_autocommit(False), enter_atomic]
)
@pytest.mark.parametrize("fails", [True, False])
def test_a_transaction_that_a_function_leaves_open_does_not_swallow_the_jobs_end(
    fails: bool, leave_open: Any, run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        leave_open()
        Job.objects.filter(pk=job.pk).update(org_id="undone")
        if fails:
            raise ZeroDivisionError

    pk = run(work, raises=ZeroDivisionError if fails else OpenTransaction)
    row = jobs.row(pk)
    code = "ZeroDivisionError" if fails else "OpenTransaction"
    assert (row["status"], row["fail_code"], row["org_id"]) == (Status.QUEUED, code, None)
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


def test_a_callers_transaction_is_left_alone(one_app: Celery, jobs: Rows) -> None:
    """Out of autocommit, where Django knows of no block."""
    job = Job(type="mail")
    Job.objects.bulk_create([job])
    task = declare(one_app, lambda job, lease: None)
    transaction.set_autocommit(False)
    try:
        Job.objects.filter(pk=job.pk).update(org_id="kept")
        task(job.pk)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    row = jobs.row(job.pk)
    assert (row["status"], row["org_id"]) == (Status.SUCCESS, "kept")


def test_a_job_that_was_finished_in_a_transaction_left_open_has_not_ended(
    run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        begin()
        lease.finish()

    pk = run(work, raises=OpenTransaction, max_attempts=1)
    assert (jobs.row(pk)["status"], jobs.row(pk)["fail_code"]) == (
        Status.FAILED,
        "OpenTransaction",
    )


def test_in_a_callers_transaction_a_function_undoes_no_more_than_its_own(
    one_app: Celery, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        enter_atomic()
        Job.objects.filter(pk=job.pk).update(org_id="undone")

    job = Job(type="mail")
    Job.objects.bulk_create([job])
    task = declare(one_app, work)
    with transaction.atomic():
        Job.objects.filter(pk=job.pk).update(priority=7)
        with pytest.raises(OpenTransaction):
            task(job.pk)
    row = jobs.row(job.pk)
    assert (row["status"], row["fail_code"]) == (Status.QUEUED, "OpenTransaction")
    assert (row["priority"], row["org_id"]) == (7, None)


def test_where_the_failure_cannot_be_written_the_exception_is_seen_all_the_same(
    run: Run, jobs: Rows, sql: Sql
) -> None:
    """The lease runs out, and the reaper does the rest."""

    def work(job: Any, lease: Any) -> None:
        sql("ALTER TABLE jobreaper_jobs RENAME TO jobreaper_jobs_away")
        raise ZeroDivisionError

    try:
        pk = run(work, raises=ZeroDivisionError)
    finally:
        sql("ALTER TABLE jobreaper_jobs_away RENAME TO jobreaper_jobs")
    assert jobs.row(pk)["status"] == Status.PROCESSING


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("interrupt", [True, False])
@pytest.mark.parametrize(("error", "code"), [(None, 0), (SystemExit(3), 3), (ValueError(), 1)])
def test_a_process_that_the_function_forks_ends_no_job_and_is_no_second_worker(
    error: BaseException | None, code: int, interrupt: bool, run: Run, jobs: Rows
) -> None:
    parent = os.getpid()
    seen: list[Any] = []

    def fork(job: Any, lease: Any) -> None:
        child = os.fork()
        if child == 0:
            if error is not None:
                raise error
            return
        _, status = os.waitpid(child, 0)
        seen.append((os.waitstatus_to_exitcode(status), jobs.row(job.pk)["status"]))

    try:
        pk = run(fork, interrupt=interrupt)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert seen == [(code, Status.PROCESSING)]
    assert jobs.event_types(pk) == [EventType.JOB_FINISHED]
