"""How each way out of a task's function ends its job; the table in docs/celery.md.

The task is called as the worker calls it. What a message, a worker or a signal has to do with it is
tested with those.
"""

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.exceptions import Ignore
from django.db import connection, transaction
from django.test import override_settings

from jobreaper import ConfigurationError, LeasedTask, cancel, enqueue
from jobreaper.db import retry
from jobreaper.models import Job
from jobreaper.states import EventType, Status
from tests.celery.brokers import declare, deliver, raising
from tests.celery.conftest import Run, wait_sec
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


# The function's own word


def test_a_function_that_returns_finishes_its_job(run: Run, jobs: Rows) -> None:
    seen: list[Any] = []

    def work(job: Any, lease: Any) -> str:
        row = jobs.row(job.pk)
        seen.append((job.pk == lease.pk, row["status"], row["locked_by"] == lease.worker))
        return "not wanted"

    pk = run(work)
    assert seen == [(True, Status.PROCESSING, True)]
    assert (jobs.row(pk)["status"], jobs.row(pk)["attempt_count"]) == (Status.SUCCESS, 1)
    assert jobs.event_types(pk) == [EventType.JOB_FINISHED]


def test_with_bind_the_function_is_given_the_task_too(run: Run, jobs: Rows) -> None:
    given: list[Any] = []
    pk = run(lambda self, job, lease: given.append((self, job, lease)), bind=True)
    [(task, job, lease)] = given
    assert (task.job_model(), job.pk, lease.pk) == (Job, pk, pk)
    assert jobs.row(pk)["status"] == Status.SUCCESS


def test_what_the_function_returns_is_stored_in_the_transaction_that_finishes(
    run: Run, jobs: Rows
) -> None:
    pk = run(lambda job, lease: {"pages": 3}, result_field="payload")
    assert (jobs.row(pk)["payload"], jobs.row(pk)["status"]) == ({"pages": 3}, Status.SUCCESS)


def test_a_result_that_cannot_be_stored_fails_the_attempt_and_stores_nothing(
    run: Run, jobs: Rows
) -> None:
    pk = run(lambda job, lease: object(), raises=TypeError, result_field="payload")
    row = jobs.row(pk)
    assert (row["status"], row["payload"], row["fail_code"]) == (Status.QUEUED, {}, "TypeError")


def test_the_result_of_a_lost_lease_is_not_stored(run: Run, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> dict[str, int]:
        cancel(Job, [job.pk], by="somebody")
        return {"pages": 3}

    pk = run(work, raises=Ignore, result_field="payload")
    assert (jobs.row(pk)["payload"], jobs.row(pk)["status"]) == ({}, Status.CANCELLED)
    # The record of the rejected write lives and dies with the transaction it stood in.
    assert jobs.event_types(pk) == [EventType.ADMIN_CANCELLED]


def test_a_save_that_is_rejected_tells_the_function_that_its_lease_is_gone(
    run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="somebody")
        job.payload = {"pages": 3}
        job.save()

    pk = run(work, raises=Ignore)
    assert jobs.row(pk)["payload"] == {}
    assert jobs.event_types(pk) == [
        EventType.ADMIN_CANCELLED,
        EventType.JOB_STALE_WRITE_REJECTED,
    ]


@pytest.mark.parametrize("verb", ["finish", "release", "fail"])
def test_a_function_that_ended_its_lease_itself_is_left_at_that(
    verb: str, run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        with transaction.atomic():
            lease.fail("late", "in the day") if verb == "fail" else getattr(lease, verb)()

    pk = run(work)
    ended = {
        "finish": (Status.SUCCESS, [EventType.JOB_FINISHED]),
        "release": (Status.QUEUED, [EventType.JOB_RELEASED]),
        "fail": (Status.QUEUED, [EventType.JOB_RETRIED]),
    }
    assert (jobs.row(pk)["status"], jobs.event_types(pk)) == ended[verb]


def test_an_exception_after_the_lease_was_finished_takes_nothing_back(run: Run, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> None:
        lease.finish()
        raise ZeroDivisionError

    pk = run(work, raises=ZeroDivisionError)
    assert jobs.event_types(pk) == [EventType.JOB_FINISHED]


def test_a_finish_that_was_rolled_back_does_not_count(run: Run, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> None:
        with transaction.atomic():
            lease.finish()
            raise ZeroDivisionError

    pk = run(work, raises=ZeroDivisionError)
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


# Exceptions


@pytest.mark.parametrize(
    "error", [ValueError("no such page"), SoftTimeLimitExceeded("too slow")], ids=repr
)
def test_an_exception_is_retried_with_the_stages_backoff_and_raised_to_celery(
    error: Exception, run: Run, jobs: Rows
) -> None:
    with override_settings(JOBREAPER={"STAGES": {"mail": {"backoff": [100]}}}):
        pk = run(raising(error), raises=type(error))
    assert 60 < wait_sec(jobs, pk) <= 100
    row = jobs.row(pk)
    assert (row["status"], row["fail_code"]) == (Status.QUEUED, type(error).__name__)
    assert str(error.args[0]) in row["fail_reason"]
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


def test_a_soft_time_limit_in_the_middle_of_a_query_is_retried_like_any(
    run: Run, jobs: Rows, sql: Sql
) -> None:
    """Celery raises it from a signal's handler, and psycopg leaves the query to itself."""
    query = "SELECT pg_sleep(60)"
    working = (
        "FROM pg_stat_activity"
        " WHERE query = %s AND state = 'active' AND datname = current_database()"
    )

    def strike(thread: int) -> None:
        until(lambda: sql(f"SELECT 1 {working}", query))
        signal.pthread_kill(thread, signal.SIGUSR1)

    def work(job: Any, lease: Any) -> None:
        threading.Thread(target=strike, args=(threading.get_ident(),)).start()
        with connection.cursor() as cursor:
            cursor.execute(query)

    before = signal.signal(signal.SIGUSR1, raising(SoftTimeLimitExceeded("too slow")))
    try:
        pk = run(work, raises=SoftTimeLimitExceeded)
    finally:
        signal.signal(signal.SIGUSR1, before)
        sql(f"SELECT pg_terminate_backend(pid) {working}", query)
    row = jobs.row(pk)
    assert (row["status"], row["fail_code"]) == (Status.QUEUED, "SoftTimeLimitExceeded")
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


async def never_awaited(job: Any, lease: Any) -> None: ...


def never_begun(job: Any, lease: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("work", "why"), [(never_awaited, "is async"), (never_begun, "has a yield")]
)
def test_a_function_that_has_not_run_does_not_count_as_done(
    work: Any, why: str, run: Run, jobs: Rows
) -> None:
    pk = run(work, raises=TypeError)
    row = jobs.row(pk)
    assert (row["status"], row["fail_code"]) == (Status.QUEUED, "TypeError")
    assert f"did not run: it {why}" in row["fail_reason"]


def test_an_exception_of_the_last_attempt_fails_the_job(run: Run, jobs: Rows) -> None:
    pk = run(raising(ValueError("no such page")), raises=ValueError, max_attempts=1)
    row = jobs.row(pk)
    assert (row["status"], row["fail_reason"]) == (Status.FAILED, "no such page")
    assert row["finished_at"] is not None
    assert jobs.event_types(pk) == [EventType.JOB_FAILED]


def test_an_exception_inside_a_broken_transaction_is_still_on_record(run: Run, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    pk = run(work, raises=Exception)
    assert jobs.row(pk)["fail_code"] == "DataError"


@pytest.fixture
def plain_role(sql: Sql) -> Iterator[str]:
    """A role that may do nothing with the job's table."""
    name = f"plain_{uuid.uuid4().hex}"  # roles are the whole server's
    sql(f"CREATE ROLE {name}")
    yield f"SET ROLE {name}"
    sql(f"DROP ROLE {name}")


@pytest.fixture(params=["role", "search_path", "read-only"])
def change_session(
    request: pytest.FixtureRequest, plain_role: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Return a function that makes its session one that cannot write jobs. It is tried as often as
    ever, with shorter waits.
    """
    monkeypatch.setattr(retry, "FIRST_RETRY_SEC", 0.001)
    statement = {
        "role": plain_role,
        "search_path": "SET search_path = pg_catalog",
        "read-only": "SET default_transaction_read_only = on",
    }[request.param]

    def change() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    yield change
    connection.close()


@pytest.mark.parametrize("result_field", [None, "payload"])
def test_a_function_that_changes_its_session_finishes_all_the_same(
    result_field: str | None, change_session: Callable[[], None], run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> dict[str, int]:
        change_session()
        return {"pages": 3}

    pk = run(work, result_field=result_field)
    assert jobs.row(pk)["status"] == Status.SUCCESS
    assert jobs.event_types(pk) == [EventType.JOB_FINISHED]


def test_a_function_that_changes_its_session_and_fails_is_retried(
    change_session: Callable[[], None], run: Run, jobs: Rows
) -> None:
    def work(job: Any, lease: Any) -> None:
        change_session()
        raise ZeroDivisionError

    pk = run(work, raises=ZeroDivisionError)
    assert jobs.row(pk)["fail_code"] == "ZeroDivisionError"
    assert jobs.event_types(pk) == [EventType.JOB_RETRIED]


def test_a_session_that_another_task_has_changed_costs_no_job(
    change_session: Callable[[], None], one_app: Celery, jobs: Rows
) -> None:
    key = jobs.plant(stage="mail")
    change_session()
    declare(one_app, lambda job, lease: None)(key)
    assert jobs.row(key)["status"] == Status.SUCCESS


@pytest.mark.parametrize("code", ["OSError", None])
def test_what_before_start_raises_is_counted_like_the_functions(
    code: str | None, one_app: Celery, jobs: Rows
) -> None:
    seen: list[Any] = []

    class Prepared(LeasedTask):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append(("before", task_id, args))
            if code is not None:
                raise OSError("no printer")

    task = declare(one_app, lambda job, lease: seen.append("run"), base=Prepared)
    pk = jobs.plant(stage="mail")
    deliver(task, pk)
    assert [at for at, _, args in seen[:1] if args == (pk,)] == ["before"]
    row = jobs.row(pk)
    assert (row["attempt_count"], row["fail_code"]) == (1, code)
    if code is None:
        assert seen[1:] == ["run"]
        assert row["status"] == Status.SUCCESS


# What is no task


def test_a_task_without_a_model_says_so(one_app: Celery) -> None:
    task = declare(one_app, lambda job, lease: None, model=None)
    with pytest.raises(ConfigurationError, match=r"task tests\.\d+ needs model="):
        task(1)


def test_a_job_that_does_not_exist_is_refused_quietly(one_app: Celery) -> None:
    task = declare(one_app, lambda job, lease: pytest.fail("it ran"))
    job = enqueue("mail")
    Job.objects.filter(pk=job.pk).delete()
    assert task(job.pk) is None
