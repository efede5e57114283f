"""In a coroutine nothing is sent, and the error says what to do."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from jobreaper import claim, claim_next, enqueue, reap
from jobreaper.models import Job
from jobreaper.protocol.claim import hold
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    return Rows(sql, "jobreaper_jobs")


def enter_hold(pk: Any) -> None:
    with hold(Job, pk):
        pass


CALLS: dict[str, Callable[[Any], object]] = {
    "hold": enter_hold,
    "claim": lambda pk: claim(Job, pk),
    "claim_next": lambda pk: claim_next(Job),
    "enqueue": lambda pk: enqueue("mail"),
    "reap": lambda pk: reap([Job]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_a_coroutine_calls_is_refused_and_nothing_is_sent(
    call: Callable[[Any], object], jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    pk = enqueue("mail").pk
    before = jobs.all()

    async def work() -> None:
        call(pk)

    caplog.clear()
    with pytest.raises(SynchronousOnlyOperation, match=re.escape("sync_to_async()")):
        asyncio.run(work())
    assert jobs.all() == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("verb", ["finish", "fail", "release", "heartbeat"])
def test_a_verb_that_a_coroutine_calls_leaves_the_lease_as_it_is(verb: str, jobs: Rows) -> None:
    lease = claim(Job, enqueue("mail").pk)
    assert lease is not None
    before = jobs.row(lease.pk)

    async def work() -> None:
        lease.fail("E") if verb == "fail" else getattr(lease, verb)()

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(work())
    assert jobs.row(lease.pk) == before
    lease.check()
    lease.finish()
    assert jobs.row(lease.pk)["status"] == "success"


def test_a_coroutine_that_works_in_a_thread_finishes_its_job(jobs: Rows) -> None:
    pk = enqueue("mail").pk

    def in_a_thread() -> None:
        enter_hold(pk)
        connections.close_all()

    async def work() -> None:
        await sync_to_async(in_a_thread)()

    asyncio.run(work())
    assert jobs.row(pk)["status"] == "success"
