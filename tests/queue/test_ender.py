"""Full groups of done jobs, which are ended beside the handlers of the next ones."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from jobreaper import enqueue_many
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group
from jobreaper.queue.ender import Ender
from jobreaper.queue.lane import Lane
from jobreaper.queue.worker import Worker
from jobreaper.states import Status
from jobreaper.tables import table_of
from tests.queue.working import Gate
from tests.rows import Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

GROUP = 5

NONE = [{"count": 0}]

WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def lane_with(idle: int) -> Lane:
    """The lane of a worker that has this many idle jobs to run, and a gated one after them."""
    enqueue_many([{}] * idle, type="idle")
    enqueue_many([{}], type="gate")
    [lane] = Worker(concurrency=1, batch=GROUP)._lanes
    lane.hand.take(claim_group(table_of(Job), idle + 1, types=["idle", "gate"]))
    return lane


@contextmanager
def no_ends(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """No job can be ended in this block."""
    with connection.transaction():
        connection.execute("LOCK TABLE job_events IN SHARE ROW EXCLUSIVE MODE")
        yield


def test_the_next_handler_does_not_wait_for_the_end_of_a_full_group(
    gate: Gate, second_connection: psycopg.Connection[Any]
) -> None:
    lane = lane_with(idle=GROUP)
    with no_ends(second_connection):
        lane.crew.start()
        until(lambda: gate.entered)
        assert lane.hand.tally.succeeded == 0
    until(lambda: lane.hand.tally.succeeded == GROUP)
    assert Job.objects.filter(status=Status.SUCCESS).count() == GROUP
    gate.open.set()
    lane.dismiss()
    lane.end_done(at_once=True)
    assert lane.hand.tally.succeeded == GROUP + 1


def test_the_main_thread_claims_on_and_leaves_a_full_group_to_it(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.in_hand.LINGER_SEC", 600)
    lane = lane_with(idle=GROUP)
    monkeypatch.setattr(lane._ender, "tell", lambda: None)
    lane.crew.start()
    until(lambda: gate.entered)
    assert lane.hand.groups_done == 1
    lane.end_done()
    assert lane.hand.tally.succeeded == 0
    lane.end_group()
    assert lane.hand.tally.succeeded == GROUP
    gate.open.set()
    lane.dismiss()
    lane.end_done(at_once=True)


def test_handlers_wait_when_groups_are_done_faster_than_they_are_ended(
    gate: Gate, second_connection: psycopg.Connection[Any], sql: Sql
) -> None:
    """What is done and not ended runs again if the worker is killed."""
    # Its thread takes less than two groups, and the handlers stop after two more.
    lane = lane_with(idle=5 * GROUP)
    with no_ends(second_connection):
        lane.crew.start()
        until(lambda: sql(WAITING) != NONE)
        # Long enough for handlers that do not wait.
        time.sleep(0.5)
        assert gate.entered == []
        assert lane.hand.waiting >= GROUP
    until(lambda: gate.entered)
    gate.open.set()
    until(lambda: lane.hand.left == 0)
    lane.dismiss()
    lane.end_done(at_once=True)
    assert lane.hand.tally.succeeded == 5 * GROUP + 1


def test_slow_jobs_need_no_thread_for_their_ends(working: Any, gate: Gate) -> None:
    enqueue_many([{}], type="gate")
    worker = working(batch=GROUP)
    until(lambda: gate.entered)
    gate.open.set()
    until(lambda: worker.tally.succeeded == 1)
    assert "jobreaper-work-end" not in {thread.name for thread in threading.enumerate()}


def test_its_connection_serves_several_groups_and_ends_when_there_are_no_more(
    monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    pids: list[int] = []

    def end() -> None:
        with connection.cursor() as cursor:
            pids.append(cursor.connection.info.backend_pid)

    ended = threading.Event()
    ender = Ender(end, ring=ended.set, broken=lambda error: None)
    try:
        for keep_sec in (600, 600, 0):
            monkeypatch.setattr("jobreaper.queue.ender.KEEP_CONNECTED_SEC", keep_sec)
            ended.clear()
            ender.tell()
            assert ended.wait(20)
        assert len(pids) == 3
        assert len({*pids}) == 1
        until(lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pids[0]) == NONE)
    finally:
        ender.dismiss()


def test_an_exception_of_the_thread_is_told() -> None:
    told: list[BaseException] = []

    def end() -> None:
        raise ZeroDivisionError

    ender = Ender(end, ring=lambda: None, broken=told.append)
    ender.tell()
    until(lambda: told)
    assert isinstance(told[0], ZeroDivisionError)
    ender.dismiss()
