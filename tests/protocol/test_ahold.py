"""`async with ahold(...)`: what `hold()` does, and what a cancellation does."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from pytest_django import Settings

from jobreaper import LeaseLost, NotClaimed, ahold, cancel, signals
from jobreaper.protocol import heartbeat
from project.media.models import Job
from tests.loops import in_a_loop
from tests.rows import Rows
from tests.waiting import until

Work = Callable[[], Awaitable[Any]]


def below_a_request(work: Work) -> None:
    async_to_sync(work)()


@pytest.mark.parametrize("run", [in_a_loop, below_a_request])
def test_the_job_is_running_in_the_block_and_done_after_it(
    run: Callable[[Work], None], jobs: Rows
) -> None:
    key = jobs.plant()

    async def work() -> None:
        async with ahold(Job, key, worker="w1") as lease:
            assert jobs.row(key)["locked_by"] == "w1"
            lease.check()
            lease.job.payload = {"seen": True}
            await lease.job.asave()
        assert await Job.objects.aget(pk=key, payload={"seen": True})

    run(work)
    assert jobs.row(key)["status"] == "success"
    assert jobs.event_types(key) == ["job:finished"]


def test_a_job_that_cannot_be_claimed_is_not_run(jobs: Rows) -> None:
    key = jobs.plant(status="success")

    async def work() -> None:
        with pytest.raises(NotClaimed):
            async with ahold(Job, key):
                pytest.fail("the block ran")

    in_a_loop(work)


def test_an_exception_fails_the_attempt_and_goes_on(jobs: Rows) -> None:
    key = jobs.plant()

    async def work() -> None:
        with pytest.raises(ValueError, match="went wrong"):
            async with ahold(Job, key):
                raise ValueError("went wrong")

    in_a_loop(work)
    row = jobs.row(key)
    assert (row["status"], row["fail_code"]) == ("queued", "ValueError")
    assert jobs.event_types(key) == ["job:retried"]


def test_a_lost_lease_cancels_the_block_and_leaves_the_task_alone_after_it(
    jobs: Rows, settings: Settings
) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}
    key, other = jobs.plant(), jobs.plant()
    told: list[BaseException] = []

    async def lose() -> None:
        async with ahold(Job, key):
            await sync_to_async(cancel)(Job, [key], by="ann")
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 20)
            except asyncio.CancelledError as error:
                told.append(error)
                raise

    async def work() -> None:
        with pytest.raises(LeaseLost, match="taken away"):
            await lose()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with ahold(Job, other):
            await asyncio.sleep(0)

    in_a_loop(work)
    assert "taken away" in str(told[0])
    assert jobs.event_types(key) == ["admin:cancelled"]
    assert jobs.row(other)["status"] == "success"


def test_who_cancels_the_task_too_is_not_denied_it(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}
    key = jobs.plant()

    async def work() -> None:
        async with ahold(Job, key):
            await sync_to_async(cancel)(Job, [key], by="ann")
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 20)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        in_a_loop(work)


def test_a_task_that_is_cancelled_releases_its_job(jobs: Rows) -> None:
    key = jobs.plant()

    async def work() -> None:
        async with asyncio.timeout(None) as limit, ahold(Job, key):
            limit.reschedule(0)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        in_a_loop(work)
    row = jobs.row(key)
    assert (row["status"], row["attempt_count"]) == ("queued", 0)
    assert jobs.event_types(key) == ["job:released"]


@pytest.mark.parametrize(
    ("moment", "ends"),
    [(signals.job_claimed, "job:released"), (signals.job_finished, "job:finished")],
    ids=["claim", "end"],
)
def test_a_cancellation_waits_for_a_statement_on_its_way(
    moment: Any, ends: str, jobs: Rows
) -> None:
    """In its thread, the claim goes on whatever becomes of the task."""
    key = jobs.plant()
    gate = threading.Event()

    async def work() -> None:
        loop, reached = asyncio.get_running_loop(), asyncio.Event()

        def wait(lease: Any, **_: Any) -> None:
            loop.call_soon_threadsafe(reached.set)
            assert gate.wait(20)

        async def run() -> None:
            async with ahold(Job, key):
                pass

        moment.connect(wait)
        try:
            task = asyncio.create_task(run())
            await reached.wait()
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            moment.disconnect(wait)

    in_a_loop(work)
    assert jobs.event_types(key) == [ends]
    assert jobs.row(key)["locked_by"] is None
    assert not heartbeat.heart._leases


def test_a_coroutine_that_is_dropped_gives_its_job_back(jobs: Rows) -> None:
    key = jobs.plant()
    loop = asyncio.new_event_loop()
    entered = asyncio.Event()

    async def work() -> None:
        async with ahold(Job, key):
            entered.set()
            await asyncio.Event().wait()

    coroutine: Any = work()
    task = loop.create_task(coroutine)
    loop.run_until_complete(entered.wait())
    loop.run_until_complete(sync_to_async(connections.close_all)())
    loop.close()
    coroutine.close()
    del task, coroutine
    gc.collect()
    until(lambda: jobs.row(key)["status"] == "queued")
    assert not heartbeat.heart._leases


async def hold_in_view(request: HttpRequest) -> HttpResponse:
    async with ahold(Job, int(request.GET["pk"])) as lease:
        job = await Job.objects.aget(pk=lease.pk)
    return HttpResponse(job.status)


urlpatterns = [path("hold", hold_in_view)]


def test_a_view_that_runs_in_a_loop_can_hold_a_job(jobs: Rows) -> None:
    key = jobs.plant()

    async def work() -> None:
        request = {
            "type": "http",
            "method": "GET",
            "path": "/hold",
            "query_string": f"pk={key}".encode(),
            "headers": [(b"host", b"testserver")],
        }
        client = ApplicationCommunicator(get_asgi_application(), request)
        await client.send_input({"type": "http.request", "body": b""})
        assert (await client.receive_output(20))["status"] == 200
        assert (await client.receive_output(20))["body"] == b"processing"
        await client.wait(20)

    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]):
        in_a_loop(work)
    assert jobs.row(key)["status"] == "success"
