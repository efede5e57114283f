"""Messages on their way through a worker: run once, or refused quietly and acknowledged.

The worker is a thread of this process, so that a test can see when it has a message in hand and
when it is done with it.
"""

import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.worker import state
from pytest_django import DjangoDbBlocker

from jobreaper import cancel, enqueue
from jobreaper.models import Job
from jobreaper.states import EventType, Status
from tests.celery.brokers import BROKERS, Queue, broker_url, celery_app, leased
from tests.rows import Rows, ago, ahead
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


class Deeds:
    """What the worker's task has done and may do."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.may_end = threading.Event()

    def reset(self) -> None:
        self.begun.clear()
        self.may_end.set()


@pytest.fixture(scope="module")
def deeds() -> Deeds:
    return Deeds()


@pytest.fixture(scope="module", params=BROKERS)
def worker_app(
    request: pytest.FixtureRequest,
    deeds: Deeds,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Celery]:
    """An app whose worker runs jobs in four threads of this process."""
    # A worker on AMQP looks whether it is to stop when something happens, such as this.
    tick = {"broker_heartbeat": 10, "broker_heartbeat_checkrate": 20}
    with django_db_blocker.unblock(), celery_app(broker_url(request.param), **tick) as app:

        @leased(app, name="tests.work")
        def work(job: Any, lease: Any) -> None:
            deeds.begun.append(job.pk)
            assert deeds.may_end.wait(30)

        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False):
            # It sets the logging of the process up as a worker's.
            root.handlers = handlers
            root.setLevel(level)
            yield app
        Queue(app).delete()


@pytest.fixture
def app(worker_app: Celery, deeds: Deeds) -> Celery:
    """The worker's app, and a worker with nothing in hand."""
    deeds.reset()
    state.total_count.clear()
    state.revoked.clear()
    return worker_app


def await_messages(n: int) -> None:
    """Wait until the worker has taken `n` messages and is done with all of them."""
    until(lambda: sum(state.total_count.values()) >= n and not state.reserved_requests)


def nothing_is_left(app: Celery) -> bool:
    """Return whether the broker keeps no message, acknowledged or not."""
    queue = Queue(app)
    if app.connection_for_read().transport.driver_type == "redis":
        with app.connection_for_read() as connection:
            channel: Any = connection.default_channel
            kept = channel.client.hvals("unacked")
            return not any(queue.name.encode() in message for message in kept) and not queue.take()
    with app.connection_for_read() as connection:
        declared: Any = app.amqp.queues[queue.name](connection.default_channel).queue_declare(
            passive=True
        )
        return bool(declared.message_count == 0)


def plant(jobs: Rows, **columns: Any) -> uuid.UUID:
    key: uuid.UUID = jobs.plant(stage="mail", **columns)
    return key


def nudge(app: Celery, key: Any, n: int = 1, **options: Any) -> list[Any]:
    return [app.tasks["tests.work"].apply_async(args=(key,), **options) for _ in range(n)]


def test_a_job_that_is_enqueued_runs_and_nothing_is_left_of_its_message(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    job = enqueue("mail")
    until(lambda: jobs.row(job.pk)["status"] == Status.SUCCESS)
    await_messages(1)
    assert deeds.begun == [job.pk]
    assert jobs.event_types(job.pk)[-1] == EventType.JOB_FINISHED
    until(lambda: nothing_is_left(app))
    # None is needed.
    assert app.conf.result_backend is None


def test_the_same_message_delivered_fifty_times_runs_once(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    key = plant(jobs)
    deeds.may_end.clear()
    nudge(app, key, 25)
    until(lambda: sum(state.total_count.values()) >= 25 and len(state.active_requests) == 1)
    nudge(app, key, 20)
    until(lambda: sum(state.total_count.values()) >= 45 and len(state.active_requests) == 1)
    # The message of a job that runs has been acknowledged too: the row is the job.
    until(lambda: nothing_is_left(app))
    deeds.may_end.set()
    until(lambda: jobs.row(key)["status"] == Status.SUCCESS)
    nudge(app, key, 5)
    await_messages(50)
    assert deeds.begun == [key]
    row = jobs.row(key)
    assert (row["attempt_count"], row["lease_epoch"]) == (1, 1)
    assert jobs.event_types(key) == [EventType.JOB_FINISHED]
    until(lambda: nothing_is_left(app))


def _late(jobs: Rows) -> Any:
    """Reaped meanwhile, and waiting for its backoff: awx#12135."""
    return plant(jobs, attempt_count=1, reap_count=1, next_earliest_run_at=ahead(60))


def _cancelled(jobs: Rows) -> Any:
    key = plant(jobs)
    cancel(Job, [key], by="somebody")
    return key


def _running_elsewhere(jobs: Rows) -> Any:
    return jobs.plant_running(stage="mail")


def _lost_elsewhere(jobs: Rows) -> Any:
    """Its lease has run out, and that is the reaper's to say."""
    return jobs.plant_expired(stage="mail")


def _deleted(jobs: Rows) -> Any:
    return uuid.uuid4()


@pytest.mark.parametrize(
    "make",
    [
        _late,
        _cancelled,
        _running_elsewhere,
        _lost_elsewhere,
        _deleted,
        lambda jobs: plant(jobs, status="success", finished_at=ago(1)),
        lambda jobs: plant(jobs, status="failed", finished_at=ago(1)),
    ],
    ids=["late", "cancelled", "running", "lost", "deleted", "success", "failed"],
)
def test_a_message_about_a_job_that_is_not_to_run_is_refused_quietly_and_acknowledged(
    make: Any, app: Celery, deeds: Deeds, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    key = make(jobs)
    before = jobs.all()
    events = jobs.event_types(key)
    with caplog.at_level(logging.INFO, "jobreaper"):
        nudge(app, key)
        await_messages(1)
    assert deeds.begun == []
    assert jobs.all() == before
    assert jobs.event_types(key) == events
    until(lambda: nothing_is_left(app))
    assert f"tests.work refused {key}: " in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_job_whose_claim_is_being_made_elsewhere_is_not_waited_for(
    app: Celery, deeds: Deeds, jobs: Rows, second_connection: Any
) -> None:
    key = plant(jobs)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [key])
    nudge(app, key)
    await_messages(1)
    assert deeds.begun == []


def test_a_job_that_fails_is_on_record_and_the_worker_goes_on(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    failing = plant(jobs)
    deeds.begun = None  # type: ignore[assignment]  # so that the task's function fails
    nudge(app, failing)
    await_messages(1)
    deeds.begun = []
    key = plant(jobs)
    nudge(app, key)
    until(lambda: jobs.row(key)["status"] == Status.SUCCESS)
    assert jobs.row(failing)["fail_code"] == "AttributeError"


# revoke()


def test_revoke_before_the_worker_meets_the_message_cancels_the_job(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    key = plant(jobs)
    id = str(uuid.uuid4())
    app.control.revoke(id)
    until(lambda: id in state.revoked)
    nudge(app, key, task_id=id)
    until(lambda: jobs.row(key)["status"] == Status.CANCELLED)
    assert deeds.begun == []
    [event] = jobs.events(key)
    assert (event["type"], event["details"]["reason"]) == (EventType.JOB_CANCELLED, "revoked")
    until(lambda: nothing_is_left(app))


def revoked_in_mid_run(app: Celery, deeds: Deeds, jobs: Rows) -> tuple[uuid.UUID, str]:
    """Revoke the message of a job that runs; return the job's key and the message's id."""
    deeds.may_end.clear()
    key = plant(jobs)
    [result] = nudge(app, key)
    id = str(result.id)
    until(lambda: deeds.begun)
    result.revoke()
    until(lambda: id in state.revoked)
    return key, id


def test_revoke_without_terminate_leaves_a_running_job_alone(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    key, _ = revoked_in_mid_run(app, deeds, jobs)
    deeds.may_end.set()
    until(lambda: jobs.row(key)["status"] == Status.SUCCESS)
    assert jobs.event_types(key) == [EventType.JOB_FINISHED]


def test_a_revoked_message_that_comes_again_leaves_its_running_job_alone(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    key, id = revoked_in_mid_run(app, deeds, jobs)
    nudge(app, key, task_id=id)
    following = plant(jobs)
    nudge(app, following)
    until(lambda: following in deeds.begun)
    deeds.may_end.set()
    until(lambda: jobs.row(key)["status"] == Status.SUCCESS)
    assert jobs.event_types(key) == [EventType.JOB_FINISHED]


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoked_message_whose_argument_cannot_be_a_key_harms_no_worker(
    terminate: bool, app: Celery, deeds: Deeds, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    id, later = str(uuid.uuid4()), plant(jobs)
    app.control.revoke(id, terminate=terminate)
    until(lambda: id in state.revoked)
    nudge(app, "no key", task_id=id)
    nudge(app, later)
    until(lambda: jobs.row(later)["status"] == Status.SUCCESS)
    assert "revoked, but ['no key'] was not cancelled: " in caplog.text


def test_a_revoked_message_that_is_not_about_one_job_cancels_none(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    keys = [plant(jobs) for _ in range(2)]
    work = app.tasks["tests.work"]
    for args, kwargs in ((tuple(keys), {}), (tuple(keys[:1]), {"colour": "red"})):
        id = str(uuid.uuid4())
        app.control.revoke(id)
        until(lambda id=id: id in state.revoked)  # type: ignore[misc]
        work.apply_async(args=args, kwargs=kwargs, task_id=id)
    following = plant(jobs)
    nudge(app, following)
    until(lambda: jobs.row(following)["status"] == Status.SUCCESS)
    assert {jobs.row(key)["status"] for key in keys} == {Status.QUEUED}


def test_a_message_that_expired_is_dropped_and_its_job_waits_for_the_next(
    app: Celery, deeds: Deeds, jobs: Rows
) -> None:
    key, next_key = plant(jobs), plant(jobs)
    nudge(app, key, expires=-60)
    nudge(app, next_key)
    until(lambda: jobs.row(next_key)["status"] == Status.SUCCESS)
    assert deeds.begun == [next_key]
    assert jobs.row(key)["status"] == Status.QUEUED
    assert jobs.event_types(key) == []
    nudge(app, key)
    until(lambda: jobs.row(key)["status"] == Status.SUCCESS)
