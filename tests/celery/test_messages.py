"""What is sent when: the message of a job made in a transaction."""

from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from django.db import transaction
from django.test import override_settings

from jobreaper import enqueue, enqueue_many
from jobreaper.models import Job
from tests.celery.brokers import Queue, job_ids, leased
from tests.rows import Rows, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def task(app: Celery) -> Any:
    """A task for every job of the ready-made table, with a signature of its own."""

    @leased(app, name="tests.any")
    def handle_anything(job: Any, lease: Any, *, colour: str = "red") -> None: ...

    return handle_anything


class _Undo(Exception):
    pass


def make_in_vain(make: Any) -> None:
    with transaction.atomic():
        make("in vain")
        raise _Undo


def test_a_message_carries_the_jobs_id_and_nothing_else(queue: Queue) -> None:
    job = enqueue("mail", {"to": "x"})
    [message] = queue.take()
    args, kwargs, _ = message.payload
    assert (args, kwargs) == ([job.pk], {})
    assert message.headers["task"] == "tests.any"


def test_apply_async_takes_the_id_whatever_the_functions_signature(task: Any, queue: Queue) -> None:
    task.apply_async(args=[17])
    [message] = queue.take()
    assert message.payload[0] == [17]


@pytest.mark.parametrize("args", [(), (1, 2)])
def test_a_message_with_anything_but_one_id_is_an_error(task: Any, args: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match=r"apply_async\(args=\[pk\]\)"):
        task(*args)


@pytest.mark.parametrize("make", [enqueue, lambda type: Job.objects.create(type=type)])
def test_a_job_is_sent_when_its_transaction_commits_and_not_before(
    make: Any, queue: Queue, jobs: Rows
) -> None:
    with transaction.atomic():
        job = make("mail")
        assert queue.take() == []
    assert job_ids(queue.take()) == [str(job.pk)]
    assert jobs.row(job.pk)["dispatched_at"] is not None


@pytest.mark.parametrize("make", [enqueue, lambda type: Job.objects.create(type=type)])
def test_a_job_that_was_rolled_back_is_not_sent(make: Any, queue: Queue) -> None:
    """celery#8491."""
    with pytest.raises(_Undo):
        make_in_vain(make)
    with transaction.atomic():
        with pytest.raises(_Undo):
            make_in_vain(make)
        kept = make("kept")
    assert job_ids(queue.take()) == [str(kept.pk)]


def test_a_jobs_second_save_sends_nothing(queue: Queue) -> None:
    job = Job.objects.create(type="mail")
    queue.take()
    job.payload = {"to": "x"}
    job.save()
    assert queue.take() == []


@pytest.mark.parametrize("status", ["processing", "success", "failed", "cancelled"])
def test_a_row_made_in_another_status_is_not_sent(status: str, queue: Queue) -> None:
    Job.objects.create(type="mail", status=status)
    assert queue.take() == []


def test_a_job_that_is_not_due_is_not_sent(queue: Queue, jobs: Rows) -> None:
    later = jobs.now() + ahead(60)
    job = enqueue("mail", run_at=later)
    Job.objects.create(type="mail", next_earliest_run_at=later)
    enqueue_many([{}] * 3, type="mail", run_at=later)
    assert queue.take() == []
    assert jobs.row(job.pk)["dispatched_at"] is None


def test_many_jobs_made_by_one_statement_are_each_sent_once(queue: Queue) -> None:
    ids = enqueue_many([{}] * 20, type="mail").ids
    assert sorted(job_ids(queue.take())) == sorted(map(str, ids))


def test_a_message_expires_when_it_would_be_sent_again(queue: Queue, jobs: Rows) -> None:
    with override_settings(JOBREAPER={"DISPATCH_AGAIN_SEC": 40}):
        job = enqueue("mail")
    [message] = queue.take()
    expires = datetime.fromisoformat(message.headers["expires"])
    sent = jobs.row(job.pk)["dispatched_at"]
    # The one is this process's clock, the other the server's; here they are the same machine's.
    assert 40 <= (expires - sent).total_seconds() < 50


def test_a_stage_has_its_own_queue_and_priority(app: Celery, queue: Queue) -> None:
    slow = Queue(app, f"{queue.name}-slow")
    stages = {"slow": {"queue": slow.name, "priority": 3}, "urgent": {"priority": 9}}
    with override_settings(JOBREAPER={"STAGES": stages}):
        plain, urgent, in_slow = enqueue("plain"), enqueue("urgent"), enqueue("slow")
    [message] = slow.take()
    slow.delete()
    assert (job_ids([message]), message.properties["priority"]) == ([str(in_slow.pk)], 3)
    found = {job_ids([m])[0]: m.properties.get("priority") for m in queue.take()}
    assert found[str(urgent.pk)] == 9
    assert found[str(plain.pk)] in (0, None)
