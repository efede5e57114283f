"""Handlers that do not end when they have to, and workers that are told to stop."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from jobreaper import LeaseLost, cancel, enqueue, job_handler, reap
from jobreaper.exceptions import WorkerStopping
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.queue import turns
from jobreaper.queue.worker import Worker
from tests.rows import Rows
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

MAX_RUNTIME_SEC = 0.5


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short max_runtime, and much patience after it, for a machine that is busy."""
    monkeypatch.setattr(turns, "GRACE_SEC", 60.0)
    monkeypatch.setattr(turns, "LEAVING_GRACE_SEC", 60.0)
    stages = {"brief": {"max_runtime": MAX_RUNTIME_SEC}}
    with override_settings(JOBREAPER={"STAGES": stages, "HEARTBEAT_SEC": 0.1}):
        yield


class Handler:
    """A handler that reports what it does."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leases: list[Any] = []
        self.raised: list[BaseException] = []

    def __call__(self, job: Any, lease: Any) -> None:
        self.leases.append(lease)
        try:
            self.entered.set()
            self.work(lease)
        except BaseException as error:
            self.raised.append(error)
            raise

    def work(self, lease: Any) -> None:
        while True:
            pass


class Hanging(Handler):
    """Does not end before it is told to, whatever is raised, as if it were in C."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.thread: threading.Thread | None = None

    def work(self, lease: Any) -> None:
        self.thread = threading.current_thread()
        while not self.gate.is_set():
            try:
                self.gate.wait(20)
            except LeaseLost as error:
                self.raised.append(error)


class Swallowing(Handler):
    """Ends as if nothing had happened."""

    def work(self, lease: Any) -> None:
        try:
            super().work(lease)
        except LeaseLost as error:
            self.raised.append(error)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "GRACE_SEC", 0.2)
    monkeypatch.setattr(turns, "LEAVING_GRACE_SEC", 0.2)


@pytest.fixture
def hanging(impatience: None) -> Iterator[Hanging]:
    handler = Hanging()
    job_handler("brief")(handler)
    yield handler
    handler.gate.set()
    if handler.thread is not None:
        handler.thread.join(20)
        assert not handler.thread.is_alive()


def started(handler: Handler, working: Any, **options: Any) -> tuple[Any, Worker]:
    job_handler("brief")(handler)
    job = enqueue("brief", stage=options.pop("stage", None))
    worker = working(**options)
    assert handler.entered.wait(20)
    return job, worker


def test_at_its_max_runtime_a_handler_is_interrupted_and_the_next_job_runs(
    working: Any, jobs: Rows
) -> None:
    handler = Handler()
    job, worker = started(handler, working)
    thread_ids = {thread.ident for thread in threading.enumerate()}
    quick = enqueue("idle")
    until(lambda: worker.tally.succeeded == 1 and worker.tally.lost == 1)
    assert jobs.row(quick.pk)["status"] == "success"
    assert [type(error) for error in handler.raised] == [LeaseLost]
    # Its thread goes on with other jobs, and the reaper decides about the job.
    assert {thread.ident for thread in threading.enumerate()} <= thread_ids
    until(lambda: reap([Job], hold=False).requeued == 1)
    assert jobs.events(job.pk)[-1]["details"]["reason"] == "deadline"


# No max_runtime, of which a job spends at most a tenth waiting for its turn: then it is released.
@override_settings(JOBREAPER={"HEARTBEAT_SEC": 0.1})
def test_a_handler_whose_job_is_cancelled_is_interrupted(working: Any, jobs: Rows) -> None:
    handler = Handler()
    job, worker = started(handler, working, stage="long")
    cancel(Job, [job.pk], by="ann")
    until(lambda: worker.tally.lost == 1)
    assert [type(error) for error in handler.raised] == [LeaseLost]
    assert jobs.event_types(job.pk) == ["job:enqueued", "admin:cancelled"]


def test_a_handler_that_does_not_end_is_given_up_and_another_thread_takes_its_place(
    hanging: Hanging, working: Any, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    _, worker = started(hanging, working)
    quick = [enqueue("idle").pk for _ in range(3)]
    until(lambda: worker.tally.succeeded == 3)
    assert {jobs.row(pk)["status"] for pk in quick} == {"success"}
    assert worker.tally.lost == 1
    assert worker.hanging == 1
    said = "the handler of brief does not end, and its thread is given up and replaced"
    assert [said in line for line in caplog.messages].count(True) == 1
    assert not heartbeat.heart._leases


def test_what_a_given_up_handler_does_later_changes_nothing(
    hanging: Hanging, working: Any, jobs: Rows
) -> None:
    job, worker = started(hanging, working)
    until(lambda: worker.tally.lost == 1)
    until(lambda: reap([Job], hold=False).requeued == 1)
    jobs.set(job.pk, next_earliest_run_at=None, stage="long", org_id="kept")
    hanging.work = lambda lease: None  # type: ignore[method-assign]
    until(lambda: worker.tally.succeeded == 1)
    before = jobs.row(job.pk)

    [late, _] = hanging.leases
    for write in (late.finish, late.release, late.job.save):
        with pytest.raises(LeaseLost):
            write()
    hanging.gate.set()
    assert hanging.thread is not None
    hanging.thread.join(20)
    assert not hanging.thread.is_alive()
    assert jobs.row(job.pk) == before
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 2)


def test_a_handler_that_hangs_after_the_end_of_its_lease_is_given_up_too(
    hanging: Hanging, working: Any, jobs: Rows
) -> None:
    hang = hanging.work
    hanging.work = lambda lease: (lease.finish(), hang(lease))  # type: ignore
    job, worker = started(hanging, working)
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 2)
    assert jobs.row(job.pk)["status"] == "success"


def test_a_replaceable_worker_ends_what_runs_beside_and_makes_room_for_another(
    hanging: Hanging, jobs: Rows
) -> None:
    beside = Handler()
    beside.work = lambda lease: until(lambda: lease.stopping, 20)  # type: ignore
    job_handler("beside")(beside)
    enqueue("brief")
    other = enqueue("beside")
    worker = Worker(concurrency=2, poll_sec=0.05, replaceable=True)
    tally = worker.run()
    assert (tally.lost, tally.succeeded) == (1, 1)
    assert worker.is_short
    assert worker.hanging == 1
    assert jobs.row(other.pk)["status"] == "success"


def test_without_interrupts_a_handler_is_not_disturbed(
    hanging: Hanging, working: Any, jobs: Rows
) -> None:
    _, worker = started(hanging, working, interrupts=False)
    until(lambda: worker.tally.lost == 1)
    assert worker.hanging == 1
    assert hanging.raised == []
    with pytest.raises(LeaseLost):
        hanging.leases[0].check()


@pytest.mark.parametrize("kind", [Handler, Swallowing, Hanging])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_has_not_ended_in_time_is_given_back_when_the_worker_stops(
    at_once: bool, kind: type[Handler], working: Any, jobs: Rows, request: pytest.FixtureRequest
) -> None:
    if kind is Hanging:
        request.getfixturevalue("impatience")
    handler = kind()
    job, worker = started(handler, working, stage="long", shutdown_sec=600 if at_once else 0.2)
    assert not handler.leases[0].stopping
    worker.stop()
    until(lambda: handler.leases[0].stopping)
    worker.stop(at_once=at_once)
    until(lambda: jobs.row(job.pk)["status"] == "queued")
    row = jobs.row(job.pk)
    assert (row["attempt_count"], row["locked_by"]) == (0, None)
    # On a busy machine it was also given back when it had waited too long for its turn.
    assert set(jobs.event_types(job.pk)) == {"job:enqueued", "job:released"}
    if isinstance(handler, Hanging):
        assert worker.hanging == 1
        handler.gate.set()
    until(lambda: handler.raised)
    assert type(handler.raised[0]) is WorkerStopping
    with pytest.raises(WorkerStopping):
        handler.leases[0].check()
    with pytest.raises(LeaseLost):
        handler.leases[0].job.save()
    until(lambda: worker.hanging == 0)


def test_a_job_that_ends_in_time_is_done(working: Any, jobs: Rows) -> None:
    handler = Handler()
    handler.work = lambda lease: until(lambda: lease.stopping, 20)  # type: ignore
    job, worker = started(handler, working, stage="long", shutdown_sec=600)
    worker.stop()
    until(lambda: worker.tally.succeeded == 1)
    assert jobs.row(job.pk)["status"] == "success"


def test_a_handler_that_runs_out_of_time_while_its_worker_stops_keeps_its_verdict(
    hanging: Hanging, working: Any, jobs: Rows
) -> None:
    job, worker = started(hanging, working, shutdown_sec=MAX_RUNTIME_SEC * 1.5)
    worker.stop()
    until(lambda: worker.tally.lost == 1)
    assert jobs.row(job.pk)["attempt_count"] == 1


def test_the_max_runtime_that_the_row_says_counts(working: Any, jobs: Rows) -> None:
    handler = Handler()
    handler.work = lambda lease: time.sleep(2 * MAX_RUNTIME_SEC)  # type: ignore
    _, worker = started(handler, working)
    jobs.sql("UPDATE jobreaper_jobs SET deadline_at = deadline_at + interval '1 hour'")
    until(lambda: worker.tally.succeeded == 1)
