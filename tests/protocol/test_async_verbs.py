"""The verbs of a lease in coroutines."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.test import override_settings

from jobreaper import BadState, Lease, LeaseClosed, LeaseLost, ahold, claim
from project.media.models import Job
from tests.loops import in_a_loop
from tests.rows import Rows, Sql
from tests.waiting import until

Verb = Callable[[Lease], Coroutine[Any, Any, Any]]

VERBS: dict[str, Verb] = {
    "afinish": lambda lease: lease.afinish(),
    "afail": lambda lease: lease.afail("E1", "why", delay_sec=60),
    "arelease": lambda lease: lease.arelease(),
    "asave_state": lambda lease: lease.asave_state({"n": 1}),
    "aheartbeat": lambda lease: lease.aheartbeat(),
}
ENDS = {"afinish": "success", "afail": "queued", "arelease": "queued"}


async def claimed(jobs: Rows) -> Lease:
    lease = await sync_to_async(claim)(Job, jobs.plant())
    assert lease is not None
    return lease


@pytest.mark.parametrize("verb", ENDS)
def test_a_verb_ends_the_job(verb: str, jobs: Rows) -> None:
    async def work() -> tuple[Lease, Any]:
        async with ahold(Job, jobs.plant()) as lease:
            return lease, await VERBS[verb](lease)

    lease, returned = in_a_loop(work)
    assert lease.closed
    assert returned is (True if verb == "afail" else None)
    row = jobs.row(lease.pk)
    assert (row["status"], row["fail_code"]) == (ENDS[verb], "E1" if verb == "afail" else None)
    assert len(jobs.events(lease.pk)) == 1


def test_a_state_is_saved_and_read_and_refused(jobs: Rows) -> None:
    async def work() -> None:
        lease = await claimed(jobs)
        assert await lease.astate() is None
        await lease.asave_state({"done": 3})
        assert await lease.astate() == {"done": 3}
        with pytest.raises(BadState):
            await lease.asave_state({"bad": object()})
        await lease.arelease()

    in_a_loop(work)


@override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 1000})
def test_a_heartbeat_renews_the_lease(jobs: Rows) -> None:
    async def work() -> None:
        lease = await claimed(jobs)
        before = lease.expires_at
        await lease.aheartbeat()
        assert before is not None
        assert lease.expires_at is not None
        assert lease.expires_at > before

    in_a_loop(work)


@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_lease_writes_nothing(verb: str, jobs: Rows) -> None:
    async def work() -> Lease:
        lease = await claimed(jobs)
        jobs.set(lease.pk, lease_epoch=9)
        with pytest.raises(LeaseLost):
            await VERBS[verb](lease)
        return lease

    lease = in_a_loop(work)
    assert jobs.row(lease.pk)["status"] == "processing"


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_ends_once(verb: str, jobs: Rows) -> None:
    async def work() -> None:
        lease = await claimed(jobs)
        await lease.afinish()
        with pytest.raises(LeaseClosed):
            await VERBS[verb](lease)

    in_a_loop(work)


@pytest.mark.parametrize("verb", ENDS)
def test_a_cancellation_waits_for_a_verb_that_is_on_its_way(
    verb: str, jobs: Rows, sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    def waits_for_the_row() -> bool:
        waiting = "datname = current_database() AND wait_event_type = 'Lock'"
        return bool(sql(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"))

    async def work() -> Lease:
        lease = await claimed(jobs)
        # Another session has locked the row meanwhile.
        with second_connection.transaction():
            second_connection.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [lease.pk])
            task = asyncio.create_task(VERBS[verb](lease))
            await asyncio.to_thread(until, waits_for_the_row)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.2)
            assert not done
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lease.closed
        return lease

    lease = in_a_loop(work)
    assert jobs.row(lease.pk)["status"] == ENDS[verb]
    assert len(jobs.events(lease.pk)) == 1


def test_a_plain_verb_in_a_coroutine_sends_nothing(jobs: Rows) -> None:
    async def work() -> None:
        lease = await claimed(jobs)
        with pytest.raises(SynchronousOnlyOperation):
            lease.finish()
        await lease.afinish()

    in_a_loop(work)


def test_a_job_is_finished_in_one_transaction_with_what_a_function_writes(jobs: Rows) -> None:
    async def work() -> Lease:
        lease = await claimed(jobs)

        def finish_and_fail() -> None:
            with transaction.atomic():
                lease.finish()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await sync_to_async(finish_and_fail)()
        assert not lease.closed
        await lease.afinish()
        return lease

    assert jobs.row(in_a_loop(work).pk)["status"] == "success"


@pytest.mark.parametrize("name", ["finish", "fail", "release", "heartbeat", "save_state"])
def test_each_verb_has_the_same_parameters_in_a_coroutine(name: str) -> None:
    sync, coroutine = getattr(Lease, name), getattr(Lease, f"a{name}")
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.signature(coroutine) == inspect.signature(sync)
