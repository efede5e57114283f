"""A connection that some other task of the worker has left in a transaction."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction

from jobreaper import tasks
from jobreaper.models import Job
from jobreaper.states import Status
from tests.celery.brokers import Queue, declare, deliver
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


def enter_atomic() -> None:
    transaction.atomic().__enter__()


def enter_atomic_and_close() -> None:
    """What Celery's own fixup makes of it when the task has ended."""
    enter_atomic()
    connection.close()


def begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; SELECT 1")


def leave_autocommit() -> None:
    transaction.set_autocommit(False)


@pytest.fixture(
    params=[enter_atomic, enter_atomic_and_close, begin, leave_autocommit],
    ids=lambda leave: leave.__name__,
)
def left_open(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[None]:
    """Some other task's transaction."""
    leave: Callable[[], None] = request.param
    leave()
    yield
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.needs_rollback = False
    connection.atomic_blocks.clear()
    connection.close()


@pytest.mark.usefixtures("left_open")
def test_a_leased_task_runs_and_what_it_writes_stays(one_app: Celery, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> None:
        Job.objects.filter(pk=job.pk).update(org_id="kept")

    key = jobs.plant(stage="mail")
    deliver(declare(one_app, work), key)
    assert (jobs.row(key)["status"], jobs.row(key)["org_id"]) == (Status.SUCCESS, "kept")


@pytest.mark.usefixtures("left_open")
def test_a_pass_is_committed(jobs: Rows) -> None:
    key = jobs.plant_expired()
    deliver(tasks.reap)
    assert jobs.row(key)["status"] == Status.QUEUED


@pytest.mark.usefixtures("left_open")
def test_a_dispatch_is_committed(one_app: Celery, jobs: Rows) -> None:
    declare(one_app, lambda job, lease: None)
    key = jobs.plant()
    deliver(tasks.dispatch)
    assert jobs.row(key)["dispatched_at"] is not None
    assert len(Queue(one_app).take()) == 1


@pytest.mark.usefixtures("left_open")
def test_a_pruning_is_committed(jobs: Rows) -> None:
    old = jobs.plant(status="success", finished_at=ago(10**8))
    deliver(tasks.prune)
    assert old not in jobs.all()


@pytest.mark.parametrize("task", [tasks.reap, tasks.dispatch, tasks.prune], ids=lambda t: t.name)
@pytest.mark.parametrize("call", [lambda task: task(), lambda task: task.apply()])
def test_a_callers_transaction_is_left_alone(call: Callable[[Any], Any], task: Any) -> None:
    with transaction.atomic():
        made = Job.objects.create(type="mail")
        call(task)
    assert Job.objects.filter(pk=made.pk).exists()
