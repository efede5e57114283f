"""The jobs that a worker has claimed and not ended.

They wait for their turn, run, are done, or have to be given back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from jobreaper.identity import local_clock
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import (
    Ending,
    Run,
    fail_group,
    finish_group,
    release_group,
    withdraw_group,
)
from jobreaper.queue.runs import OUTCOMES, Tally, is_loss

# A job that is done is marked within this time, if necessary alone.
LINGER_SEC: Final = 0.05
# Jobs that could not be ended or given back are tried again after this time, which doubles with
# each further try.
FIRST_RETRY_SEC: Final = 0.05
LONGEST_RETRY_SEC: Final = 1.0

# Failed attempts are ended in groups of this size, because the statement compares each with each.
FAILED_AT_ONCE: Final = 100


class _Retry:
    """When to try again."""

    def __init__(self) -> None:
        self._sec = FIRST_RETRY_SEC
        self.at = 0.0

    @property
    def is_due(self) -> bool:
        return local_clock() >= self.at

    def take_in(self, *, progress: bool) -> None:
        """Record whether the last try has ended anything."""
        self._sec = FIRST_RETRY_SEC if progress else min(2 * self._sec, LONGEST_RETRY_SEC)
        self.at = local_clock() + self._sec


class InHand:
    """The jobs of one worker, from the claim to the end.

    Threads that run jobs call ``next()`` and ``put_done()``, another one ends full groups, and the
    main thread does the rest.
    """

    def __init__(self, batch: int) -> None:
        self.tally = Tally()
        self._batch = batch
        self._runs: set[Run] = set()
        self._waiting: SimpleQueue[Run | None] = SimpleQueue()
        # In the order of their claims. Jobs that have started are dropped when this is read.
        self._line: deque[Run] = deque()
        self._done: deque[Run] = deque()
        # How long each of the jobs ran that are done since this was last asked for, in seconds.
        self._ran: deque[float] = deque()
        self._end_again = _Retry()
        # To be given back.
        self._unwanted: list[Run] = []
        self._release_again = _Retry()
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def left(self) -> int:
        """The number of jobs that wait for their turn or run."""
        return len(self._runs) - len(self._done)

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for their turn."""
        return self._waiting.qsize()

    @property
    def is_idle(self) -> bool:
        """Whether no job is running."""
        resting = len(self._done) + len(self._unwanted) + self.waiting
        return resting >= len(self._runs)

    @property
    def last_ended_at(self) -> float:
        """When the last of the done jobs ended."""
        last = _at(self._done, -1)
        return 0.0 if last is None else last.ended_at

    @property
    def has_unwanted(self) -> bool:
        """Whether there are jobs that still have to be given back."""
        return bool(self._unwanted)

    def take(self, runs: Sequence[Run]) -> None:
        """Add claimed jobs to the line."""
        self.tally.claimed += len(runs)
        with self._counting:
            self._runs.update(runs)
        self._line.extend(runs)
        for run in runs:
            self._waiting.put(run)

    def next(self) -> Run | None:
        """Wait for a job to run and return it. ``None`` tells the thread to end."""
        return self._waiting.get()

    def dismiss(self, threads: int) -> None:
        """Tell this number of threads to end when they are free."""
        for _ in range(threads):
            self._waiting.put(None)

    def put_done(self, run: Run) -> bool:
        """Add a run that ends now to the others. Return whether it is the first one, so that the
        main thread has to be woken.
        """
        run.ended_at = local_clock()
        self._ran.append(run.ended_at - run.started_at)
        self._done.append(run)
        return _at(self._done, 0) is run

    def take_ran(self) -> list[float]:
        """Return how long each job ran, in seconds, that is done since the last call."""
        return [self._ran.popleft() for _ in range(len(self._ran))]

    def has_waited(self, longest_sec: float) -> bool:
        """Return whether a job has waited longer for its turn, behind others that took longer than
        expected.
        """
        line = self._line
        while line and line[0].started_at:
            line.popleft()
        return bool(line) and local_clock() - line[0].claimed_at > longest_sec

    def next_moment(self, longest_wait_sec: float) -> float | None:
        """Return when there is something to do without a ring, or ``None`` for never."""
        moments = []
        if last := _at(self._done, -1):
            moments.append(self._end_again.at if last.tried else local_clock() + LINGER_SEC)
        if self._unwanted:
            moments.append(self._release_again.at)
        if self._line:
            moments.append(self._line[0].claimed_at + longest_wait_sec)
        return min(moments, default=None)

    @property
    def groups_done(self) -> int:
        """How many groups are done, each of which is worth a statement at once."""
        return len(self._done) // self._batch

    def take_done(self, *, at_once: bool = False) -> list[Run]:
        """Return the jobs that are done, for ``end()``, if one has waited long enough or no other
        will be done soon; with ``at_once``, in any case.
        """
        return self._take_done_if(lambda done: at_once or self._is_time(done))

    def take_group(self) -> list[Run]:
        """Return the jobs that are done, for ``end()``, if they are a full group."""
        return self._take_done_if(
            lambda done: self._is_full(done) and (not done[-1].tried or self._end_again.is_due)
        )

    def _take_done_if(self, is_time: Callable[[deque[Run]], bool]) -> list[Run]:
        runs: list[Run] = []
        # Another thread may be taking the same jobs.
        with suppress(IndexError):
            while runs or is_time(self._done):
                runs.append(self._done.popleft())
        return runs

    def _is_time(self, done: deque[Run]) -> bool:
        if done[-1].tried:
            return self._end_again.is_due
        has_lingered = local_clock() - done[0].ended_at >= LINGER_SEC
        return has_lingered or not (self.left or self._is_full(done))

    def _is_full(self, done: deque[Run]) -> bool:
        return len(done) >= self._batch

    def end(self, runs: Sequence[Run]) -> list[Run]:
        """End jobs that are done together, each according to its result, and return those that were
        ended. The others are tried again.

        Raises:
            django.db.Error: the database could not be reached.
        """
        if not runs:
            return []
        for run in runs:
            run.tried = True
        try:
            self._end(runs)
        finally:
            left = [run for run in runs if run in self._runs]
            self._end_again.take_in(progress=len(left) < len(runs))
            self._done.extendleft(reversed(left))
        return [run for run in runs if run not in self._runs]

    def _end(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.lease.closed:
                self._count(OUTCOMES[run.holding.ended_by], [run])
        not_ended = [run for run in runs if run in self._runs]
        lost = [run for run in not_ended if run.error and is_loss(run.lease, run.error)]
        withdrawn = [run for run in not_ended if run.holding.withdrawal and not run.lease.lost]
        lost = [run for run in lost if run not in withdrawn]
        heartbeat.heart.remove(*(run.holding for run in lost))
        self._count("lost", lost)
        self._count_ending("released", withdraw_group(withdrawn))
        others = [run for run in not_ended if run in self._runs and run not in withdrawn]
        self._count_ending("succeeded", finish_group([run for run in others if not run.error]))
        failed = [run for run in others if run.error and run in self._runs]
        for n in range(0, len(failed), FAILED_AT_ONCE):
            self._count_ending("failed", fail_group(failed[n : n + FAILED_AT_ONCE]))

    def take_back(self) -> None:
        """Take waiting jobs out of the line, to be given back."""
        with suppress(Empty):
            while (run := self._waiting.get_nowait()) is not None:
                self._unwanted.append(run)
                self._release_again.at = 0.0
        self._line.clear()

    def give_back(self, *, at_once: bool = False) -> bool:
        """Give back these jobs, and return whether there was a try. A job whose row is locked,
        perhaps by our own heartbeat, is tried again after a pause, or with ``at_once`` without a
        pause.

        Raises:
            django.db.Error: the database could not be reached.
        """
        if not (self._unwanted and (at_once or self._release_again.is_due)):
            return False
        before = len(self._unwanted)
        try:
            ending = release_group(self._unwanted)
            self._unwanted = ending.locked
            self._count_ending("released", ending)
        finally:
            self._release_again.take_in(progress=len(self._unwanted) < before)
        return True

    def let_go(self) -> int:
        """Stop the heartbeats of the remaining jobs, whose leases then run out, and return how many
        there are.
        """
        left = list(self._runs)
        heartbeat.heart.remove(*(run.holding for run in left))
        return len(left)

    def _count_ending(self, what: str, ending: Ending) -> None:
        self._count(what, ending.ended)
        self._count("lost", ending.lost)
        self._count("refused", ending.refused)

    def _count(self, what: str, runs: Sequence[Run]) -> None:
        with self._counting:
            self._runs.difference_update(runs)
            setattr(self.tally, what, getattr(self.tally, what) + len(runs))


def _at(runs: deque[Run], place: int) -> Run | None:
    # Another thread may be taking them.
    with suppress(IndexError):
        return runs[place]
    return None
