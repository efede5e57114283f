"""The bell of a worker, and the thread that rings it."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jobreaper import enqueue
from jobreaper.identity import local_clock
from jobreaper.models import Job
from jobreaper.queue.bell import Bell, Listener
from jobreaper.tables import table_of
from tests.rows import Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize("times", [1, 3])
def test_rings_that_nobody_has_waited_for_wake_the_next_who_waits_once(times: int) -> None:
    bell = Bell()
    for _ in range(times):
        bell.ring()
    bell.wait(None)
    began = local_clock()
    bell.wait(began + 0.1)
    assert local_clock() >= began + 0.1


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    Bell().wait(local_clock() - 1)


@pytest.fixture
def heard() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def listener(heard: threading.Semaphore) -> Iterator[Listener]:
    listener = Listener(table_of(Job), heard.release)
    listener.start()
    yield listener
    listener.stop()
    listener.join(20)
    assert not listener.is_alive()


def test_every_notification_is_heard_also_those_that_come_together(
    listener: Listener, heard: threading.Semaphore, sql: Sql
) -> None:
    assert heard.acquire(timeout=20)  # it listens
    for _ in range(3):
        enqueue("idle")
        assert heard.acquire(timeout=20)
    sql("SELECT pg_notify('jobreaper_jobs', n::text) FROM generate_series(1, 500) AS n")
    assert heard.acquire(timeout=20)


def test_a_listener_that_waits_to_try_again_ends_when_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    def refuse(alias: str) -> Any:
        tried.append(alias)
        raise OSError("no route")

    monkeypatch.setattr("jobreaper.queue.bell.own_connection", refuse)
    monkeypatch.setattr("jobreaper.queue.bell.LISTEN_AGAIN_SEC", 600)
    listener = Listener(table_of(Job), list)
    listener.start()
    until(lambda: tried)
    time.sleep(0.05)
    assert listener.is_alive()
    listener.stop()
    listener.join(20)
    assert not listener.is_alive()
    listener.stop()  # once more does no harm
