"""The run of one job by a worker of the Redis queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from jobreaper.exceptions import LeaseLost
from jobreaper.identity import local_clock
from jobreaper.redisq.breaker import Ticket
from jobreaper.redisq.job import Job

_current: ContextVar[Run | None] = ContextVar("jobreaper_redisq_run", default=None)


@dataclass(slots=True, eq=False)
class Run:
    """One job in a worker's own list. ``number`` is unique to the worker's runs.

    ``lost`` is true once a heartbeat has found that the job is no longer in the list; ``ending``
    once its end is being written, after which the list says nothing.
    """

    number: int
    worker_id: str
    queue: str
    entry: bytes
    job: Job
    ticket: Ticket
    started: float = field(default_factory=local_clock)
    lost: bool = False
    ending: bool = False

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return local_clock() - self.started


@contextmanager
def being(run: Run) -> Iterator[None]:
    """Make ``run`` the one that ``check()`` in the block is about."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


def check() -> None:
    """Call this in a long handler, as often as you like: it sends nothing to Redis.

    Raises:
        LeaseLost: the job was taken back, so another worker runs it, and whatever this one does
            with it will be rejected.
    """
    run = _current.get()
    if run is not None and run.lost:
        raise LeaseLost(f"the job {run.job.id!r} is no longer in the list of {run.worker_id}")
