"""What ``manage.py work`` does beside running jobs: reap, make the jobs of schedules, prune, and
whatever else other packages add, such as sending jobs to Celery.

Any number of workers may keep house, and together they do each chore about as often as one would:
who records first that it does a chore does it, and the others leave it for its interval. If a
worker dies in the middle, the chore is done by another one after the next interval. Nothing is
locked in between, so this works through any pooler.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.db import Error, connections

from jobreaper import conf, sql
from jobreaper.conf import PRUNE_INTERVAL_SEC
from jobreaper.control.retention import prune
from jobreaper.db import connection_for, fetch, in_words, without_details
from jobreaper.exceptions import JobreaperError
from jobreaper.identity import local_clock, worker_id
from jobreaper.models import Job
from jobreaper.reaper import reap
from jobreaper.schedule import Scheduler
from jobreaper.states import Trigger
from jobreaper.tables import table_of

logger = logging.getLogger("jobreaper.work")

# Who comes a little early does not wait for another interval.
EARLY_SHARE: Final = 0.1

# Workers that start together ask one after another.
JITTER: Final = 0.1

# After an error, it goes on after this time.
AGAIN_SEC: Final = 5.0

# What there is nothing to do for is asked again after this time.
NOT_WANTED_SEC: Final = 30.0

# A connection that is not needed for longer is closed: a server has few of them.
KEEP_SEC: Final = 2.0


@dataclass(frozen=True)
class Chore:
    """Something to do now and then: ``every_sec`` is asked each time, and says ``None`` while there
    is nothing to do.
    """

    name: str
    every_sec: Callable[[], float | None]
    do: Callable[[], object]


_chores: Final[list[Chore]] = [
    Chore(
        "reap",
        lambda: conf.settings().reaper_interval_sec,
        lambda: reap(trigger=Trigger.WORK),
    ),
    Chore(
        "prune",
        lambda: PRUNE_INTERVAL_SEC,
        lambda: prune(budget_sec=PRUNE_INTERVAL_SEC / 4),
    ),
]


def add_chore(chore: Chore) -> None:
    """Have workers do something more. A chore of the same name is replaced."""
    _chores[:] = [known for known in _chores if known.name != chore.name] + [chore]


def is_mine(name: str, every_sec: float) -> bool:
    """Return whether this process is the one to do a chore now, and record that it does.

    Raises:
        django.db.Error: the database could not be reached.
    """
    params = {"name": name, "worker": worker_id(), "after_sec": every_sec * (1 - EARLY_SHARE)}
    connection = connection_for(table_of(Job).alias)
    return bool(fetch(connection, sql.render("statements/take_chore"), params))


@contextmanager
def kept_house() -> Iterator[None]:
    """Keep house until the block ends."""
    housekeeper = Housekeeper()
    housekeeper.start()
    try:
        yield
    finally:
        housekeeper.stop()


class Housekeeper(threading.Thread):
    """Does the chores until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(name="jobreaper-work-chores", daemon=True)
        self._stopped = threading.Event()
        self._scheduler = Scheduler()
        self._next_schedule = 0.0
        self._next: dict[str, float] = {}

    def stop(self) -> None:
        """End the thread soon. What it does at this moment may come to its end."""
        self._stopped.set()

    def run(self) -> None:
        """Do what is due, and wait for what is next."""
        try:
            while not self._stopped.is_set():
                wait_sec = max(0.0, self._turn() - local_clock())
                if wait_sec > KEEP_SEC:
                    connections.close_all()
                self._stopped.wait(wait_sec)
        finally:
            connections.close_all()

    def _turn(self) -> float:
        """Do what is due, and return when to do so again."""
        if local_clock() >= self._next_schedule:
            self._next_schedule = local_clock() + AGAIN_SEC
            if (soon := self._guarded("schedule", self._scheduler.turn)) is not None:
                self._next_schedule = local_clock() + soon
        for chore in list(_chores):
            if self._stopped.is_set():
                break
            if local_clock() >= self._next.get(chore.name, 0.0):
                self._next[chore.name] = local_clock() + AGAIN_SEC
                every_sec = self._guarded(chore.name, partial(self._do, chore))
                if every_sec is not None:
                    jitter = random.uniform(1 - JITTER, 1)
                    self._next[chore.name] = local_clock() + every_sec * jitter
        return min(self._next_schedule, *self._next.values())

    def _do(self, chore: Chore) -> float:
        every_sec = chore.every_sec()
        if every_sec is None:
            return NOT_WANTED_SEC
        if is_mine(chore.name, every_sec):
            chore.do()
        return every_sec

    def _guarded(self, name: str, do: Callable[[], float]) -> float | None:
        """Do it; one that fails stops no other, and not the worker."""
        try:
            return do()
        except (Error, JobreaperError) as error:
            logger.warning("%s: %s", name, in_words(error))
        except Exception as error:
            logger.error("%s failed; it is tried again", name, exc_info=without_details(error))
        connections.close_all()
        return None
