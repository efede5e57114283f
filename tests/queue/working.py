"""Workers in the process of the tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group
from jobreaper.queue.runs import Tally
from jobreaper.queue.worker import Worker
from jobreaper.tables import table_of


def once(**options: Any) -> Tally:
    return Worker(**options).run(once=True)


@contextmanager
def working(**options: Any) -> Iterator[Worker]:
    """A worker that runs in a thread until the block ends."""
    worker = Worker(**options)

    def run() -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(20)


def idle(job: Any, lease: Any) -> None: ...


class Gate:
    """A handler that reports each job and waits until it is let go on."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.open = threading.Event()

    def __call__(self, job: Any, lease: Any) -> None:
        self.entered.append(job.pk)
        assert self.open.wait(20)


def take(n: int) -> Any:
    runs = claim_group(table_of(Job), n, types=["idle"])
    assert len(runs) == n
    for run in runs:
        run.started_at, run.ended_at = run.claimed_at + 1, run.claimed_at + 3
    return runs
