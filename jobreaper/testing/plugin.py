"""Fixtures for pytest, with pytest-django. In a ``conftest.py``::

pytest_plugins = ["jobreaper.testing.plugin"]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class RunningWorker:
    """A worker in a thread of the test's process."""

    def __init__(self, **options: Any) -> None:
        from jobreaper.queue.worker import Worker

        self._worker = Worker(**{"poll_sec": 0.05, **options})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from django.db import connections

        try:
            self._worker.run()
        finally:
            connections.close_all()

    def wait(self, timeout_sec: float = 60.0) -> None:
        """Return when no job of its types is queued and due, or running.

        Raises:
            AssertionError: some still are after ``timeout_sec`` seconds.
        """
        from jobreaper.models import Job

        jobs = Job.objects.filter(type__in=self._worker.handlers)
        ends_at = time.monotonic() + timeout_sec
        while left := [*jobs.due(), *jobs.running()]:
            if time.monotonic() > ends_at:
                names = ", ".join(map(str, left[:10]))
                raise AssertionError(f"not done after {timeout_sec:g} s: {names}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Let it end, as at a deploy, and wait for that."""
        self._worker.stop()
        self._thread.join(60)


@pytest.fixture
def jobreaper_worker(transactional_db: None) -> Iterator[Callable[..., RunningWorker]]:
    """Start a worker with the options of ``Worker``; it ends when the test does."""
    started: list[RunningWorker] = []

    def start(**options: Any) -> RunningWorker:
        started.append(RunningWorker(**options))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def jobreaper_eager(db: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run each job of the ready-made queue as soon as it is enqueued and due, in the same thread.
    Its exception is raised where it was enqueued. The value is the list of the ``Ran``.
    """
    from jobreaper.queue import enqueueing
    from jobreaper.testing.running import Ran, run_due

    announce = enqueueing.announce
    ran: list[Ran] = []
    is_running = False

    def announce_and_run(pks: list[Any]) -> None:
        nonlocal is_running
        announce(pks)
        if is_running:
            # The job that enqueues runs: this one comes next.
            return
        is_running = True
        try:
            ran.append(run_due())
        finally:
            is_running = False
        for error in ran[-1].errors.values():
            raise error

    monkeypatch.setattr(enqueueing, "announce", announce_and_run)
    return ran
