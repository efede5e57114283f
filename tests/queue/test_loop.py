"""`async def` handlers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import override_settings

from jobreaper import WorkerStopping, cancel, enqueue, enqueue_many, job_handler
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.queue import turns
from jobreaper.queue.runs import Tally, run_due
from jobreaper.queue.worker import Worker
from tests.queue.working import Gate, once
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

FOREVER_SEC = 600


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Beats come soon, and handlers that have to end have much time, on a busy machine."""
    monkeypatch.setattr(turns, "GRACE_SEC", 60.0)
    monkeypatch.setattr(turns, "LEAVING_GRACE_SEC", 60.0)
    with override_settings(JOBREAPER={"HEARTBEAT_SEC": 0.1}):
        yield


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "GRACE_SEC", 0.2)
    monkeypatch.setattr(turns, "LEAVING_GRACE_SEC", 0.2)


class Waits:
    """A handler that waits in the loop, and reports what has ended that."""

    def __init__(self) -> None:
        self.leases: list[Any] = []
        self.raised: list[str] = []
        job_handler("waits")(self)

    async def __call__(self, job: Any, lease: Any) -> None:
        self.leases.append(lease)
        try:
            await asyncio.sleep(FOREVER_SEC)
        except asyncio.CancelledError as error:
            self.raised.append(str(error))
            await self.end()

    async def end(self) -> None:
        raise asyncio.CancelledError


def start(handler: Waits, working: Any, **options: Any) -> tuple[Any, Worker]:
    job = enqueue("waits")
    worker = working(**options)
    until(lambda: handler.leases)
    return job, worker


def test_a_thousand_run_at_once() -> None:
    entered = 0
    everybody_is_here = asyncio.Event()

    @job_handler("meets")
    async def meet(job: Any, lease: Any) -> None:
        nonlocal entered
        entered += 1
        if entered == 1000:
            everybody_is_here.set()
        await everybody_is_here.wait()

    enqueue_many([{}] * 1000, type="meets")
    tally = once(async_concurrency=1000)
    assert (tally.succeeded, tally.failed, tally.lost) == (1000, 0, 0)


def test_no_more_run_at_once_than_there_is_room_for() -> None:
    running, most = 0, 0

    @job_handler("turns")
    async def turn(job: Any, lease: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    enqueue_many([{}] * 50, type="turns")
    assert once(async_concurrency=3).succeeded == 50
    assert most == 3


def test_what_a_handler_does_and_how_it_ends_is_its_own_jobs(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("ends")
    async def end(job: Any, lease: Any) -> None:
        lease.check()
        how = job.payload["how"]
        if how == "saves":
            job.org_id = "seen"
            await job.asave()
        elif how == "releases":
            await lease.arelease()
            await asyncio.to_thread(jobs.set, job.pk, type="nobody's")
        elif how == "exits":
            raise SystemExit
        elif how == "raises":
            raise ValueError("s3cret")
        else:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await asyncio.sleep(FOREVER_SEC)

    hows = ["saves", "releases", "exits", "raises", "cancels"]
    ids = enqueue_many(({"payload": {"how": how}} for how in hows), type="ends", max_attempts=1).ids
    assert once() == Tally(claimed=5, succeeded=1, failed=3, released=1)
    rows = [jobs.row(pk) for pk in ids]
    assert [row["status"] for row in rows] == ["success", "queued", "failed", "failed", "failed"]
    codes = [None, None, "SystemExit", "ValueError", "CancelledError"]
    assert [row["fail_code"] for row in rows] == codes
    assert rows[0]["org_id"] == "seen"
    assert len([record for record in caplog.records if record.name == "jobreaper.runs"]) == 3
    assert not heartbeat.heart._leases


def test_handlers_in_threads_and_in_the_loop_do_not_wait_for_each_other(
    gate: Gate, working: Any
) -> None:
    handler = Waits()

    @job_handler("quick")
    async def quick(job: Any, lease: Any) -> None: ...

    enqueue("gate")
    _, worker = start(handler, working, async_concurrency=2)
    until(lambda: gate.entered)
    enqueue("quick")
    until(lambda: worker.tally.succeeded == 1)
    gate.open.set()
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 3)
    assert handler.raised == []
    worker.stop(at_once=True)


def test_a_lost_lease_cancels_the_handler(working: Any, jobs: Rows) -> None:
    handler = Waits()
    job, worker = start(handler, working)
    cancel(Job, [job.pk], by="ann")
    until(lambda: worker.tally.lost == 1)
    assert "taken away" in handler.raised[0]
    assert jobs.event_types(job.pk) == ["job:enqueued", "admin:cancelled"]


async def swallow() -> None: ...


async def do_otherwise() -> None:
    raise ValueError


@pytest.mark.parametrize("end", [None, swallow, do_otherwise])
def test_a_worker_that_stops_releases_what_runs(end: Any, working: Any, jobs: Rows) -> None:
    handler = Waits()
    handler.end = end or handler.end  # type: ignore[method-assign]
    job, worker = start(handler, working, shutdown_sec=0.1)
    assert not handler.leases[0].stopping
    worker.stop()
    until(lambda: jobs.row(job.pk)["status"] == "queued")
    assert handler.leases[0].stopping
    with pytest.raises(WorkerStopping):
        handler.leases[0].check()
    assert "gives back" in handler.raised[0]
    assert jobs.row(job.pk)["attempt_count"] == 0
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:released"]
    until(lambda: worker.hanging == 0)


async def never_end(gate: threading.Event) -> None:
    while not gate.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


async def block_the_loop(gate: threading.Event) -> None:
    gate.wait(20)


async def block_the_other_thread(gate: threading.Event) -> None:
    await sync_to_async(gate.wait)(20)


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("hang", [never_end, block_the_loop, block_the_other_thread])
def test_a_handler_that_does_not_end_is_given_up_and_the_next_jobs_run(
    hang: Callable[[threading.Event], Any], working: Any, jobs: Rows, caplog: Any
) -> None:
    gate, entered = threading.Event(), threading.Event()

    @job_handler("hangs")
    async def hangs(job: Any, lease: Any) -> None:
        entered.set()
        await hang(gate)

    @job_handler("quick")
    async def quick(job: Any, lease: Any) -> None:
        await Job.objects.aget(pk=job.pk)

    job = enqueue("hangs")
    worker = working()
    try:
        assert entered.wait(20)
        cancel(Job, [job.pk], by="ann")
        until(lambda: worker.tally.lost == 1)
        enqueue_many([{}] * 3, type="quick")
        until(lambda: worker.tally.succeeded == 3)
        assert worker.hanging == 1
        assert "the handler of hangs does not end, and its loop is given up and r" in caplog.text
    finally:
        gate.set()
    until(lambda: worker.hanging == 0)
    assert worker.tally.lost == 1
    assert jobs.event_types(job.pk) == ["job:enqueued", "admin:cancelled"]


@pytest.mark.usefixtures("impatience")
def test_a_replaceable_worker_makes_room_for_another() -> None:
    gate = threading.Event()

    @job_handler("hangs")
    async def hangs(job: Any, lease: Any) -> None:
        await sync_to_async(cancel)(Job, [job.pk], by="ann")
        await never_end(gate)

    enqueue("hangs")
    worker = Worker(poll_sec=0.05, replaceable=True)
    try:
        assert worker.run().lost == 1
        assert worker.is_short
        assert worker.hanging == 1
    finally:
        gate.set()
    until(lambda: worker.hanging == 0)


def test_what_a_handler_has_started_may_exit_and_the_others_go_on(
    working: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Waits()

    def exit() -> None:
        raise SystemExit

    @job_handler("exits")
    async def exit_soon(job: Any, lease: Any) -> None:
        asyncio.get_running_loop().call_soon(exit)
        await asyncio.sleep(0.01)

    _, worker = start(handler, working)
    enqueue("exits")
    until(lambda: worker.tally.succeeded == 1)
    assert "what a handler has started has exited" in caplog.text
    assert handler.raised == []
    worker.stop(at_once=True)


def test_a_transaction_that_is_left_open_is_undone_and_nobody_succeeds_by_it(
    jobs: Rows,
) -> None:
    opened, written = asyncio.Event(), asyncio.Event()

    @job_handler("opens")
    async def leave_open(job: Any, lease: Any) -> None:
        def write() -> None:
            connection.set_autocommit(False)
            Job.objects.filter(pk=job.pk).update(org_id="seen")

        await sync_to_async(write)()
        opened.set()
        await written.wait()

    @job_handler("beside")
    async def beside(job: Any, lease: Any) -> None:
        await opened.wait()
        await Job.objects.filter(pk=job.pk).aupdate(org_id="seen")
        written.set()

    made = [enqueue(type, max_attempts=1).pk for type in ("beside", "opens")]
    after = enqueue("idle").pk
    assert once().failed == 2
    assert [jobs.row(pk)["fail_code"] for pk in made] == ["OpenTransaction"] * 2
    assert [jobs.row(pk)["org_id"] for pk in made] == [None, None]
    assert jobs.row(after)["status"] == "success"


def test_a_broken_connection_is_replaced(sql: Sql, jobs: Rows) -> None:
    @job_handler("breaks")
    async def breaks(job: Any, lease: Any) -> None:
        def end_session() -> None:
            connection.ensure_connection()
            if job.payload["n"] == 0:
                sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)

        await sync_to_async(end_session)()
        await Job.objects.filter(pk=job.pk).aupdate(org_id="seen")

    enqueue_many(({"payload": {"n": n}} for n in range(3)), type="breaks", max_attempts=1)
    assert once(async_concurrency=1) == Tally(claimed=3, succeeded=2, failed=1)


def test_a_tick_runs_it_too(jobs: Rows) -> None:
    @job_handler("ticks")
    async def tick(job: Any, lease: Any) -> None:
        await asyncio.sleep(0)
        await Job.objects.filter(pk=job.pk).aupdate(org_id="seen")

    job = enqueue("ticks")
    assert run_due(5, 60) == Tally(claimed=1, succeeded=1)
    assert jobs.row(job.pk)["org_id"] == "seen"
