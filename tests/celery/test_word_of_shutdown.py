"""What the main process says to its children: whether a signal means a deploy or their own job."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.signals import worker_init, worker_shutting_down

from jobreaper.celery import shutdown
from tests.celery.conftest import Run

# Newer Pythons warn of fork() where other threads run; these children do nothing that minds.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    shutdown.reset()
    yield
    shutdown.reset()


def a_child_hears(within_sec: float = 0) -> bool:
    """Return what a forked process finds."""
    pid = os.fork()
    if pid == 0:
        os._exit(shutdown.has_begun(within_sec))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_children_hear_of_a_shutdown_and_not_before() -> None:
    assert not a_child_hears()
    worker_shutting_down.send(sender="here", sig="SIGTERM", how="Warm", exitcode=0)
    assert a_child_hears()


def test_a_child_waits_for_a_word_that_is_on_its_way() -> None:
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(said, b"x")
        os._exit(shutdown.has_begun(30))
    os.read(ready, 1)
    os.close(ready)
    os.close(said)
    shutdown.begin()
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def test_a_word_about_one_task_does_not_last_and_takes_none_back() -> None:
    """A worker that cancels a task when it loses its broker goes on, and its later children that
    are killed are lost, not told to stop.
    """
    shutdown.begin(for_sec=0.01)
    while shutdown.has_begun():
        pass
    assert not a_child_hears()
    shutdown.begin()
    shutdown.begin(for_sec=0.01)
    assert a_child_hears(0.05)


def test_a_worker_that_starts_in_the_same_process_is_not_shutting_down() -> None:
    shutdown.begin()
    worker_init.send(sender=None)
    assert not a_child_hears()


@pytest.mark.usefixtures("transactional_db")
def test_a_leased_task_is_told_by_its_lease(run: Run) -> None:
    seen: list[bool] = []

    def work(job: Any, lease: Any) -> None:
        seen.append(lease.stopping)
        worker_shutting_down.send(sender="here", sig="SIGTERM", how="Warm", exitcode=0)
        seen.append(lease.stopping)

    run(work)
    assert seen == [False, True]
