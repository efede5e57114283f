"""A circuit breaker for each queue: when most of its jobs fail, it is left alone for a while, so
that one broken dependency does not use up the retries of every job.

The well-kept libraries (pybreaker, purgatory, circuitbreaker, aiobreaker) open after so many
failures in a row, or in total. This one opens when the share of failures within a sliding window
reaches a threshold, and only after a minimum of samples: a queue on which one job in a hundred
fails never opens, however busy it is. It also counts runs that overlap, because a worker has many.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from jobreaper.identity import local_clock
from jobreaper.redisq import signals

# The window is counted in so many parts: a worker that runs thousands of jobs a second must not
# keep the outcome of each for a minute.
PARTS: Final = 60


class BreakerState(IntEnum):
    """The state of a breaker, with the number that the metric shows."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class Ticket:
    """The leave to run one job. Only the tickets of the breaker's present ``period``, from one
    change of its state to the next, say anything about it.
    """

    period: int


@dataclass(slots=True)
class _Part:
    """The outcomes that were recorded from ``since`` on, for one part of the window."""

    since: float
    runs: int = 0
    failures: int = 0


class Breaker:
    """The breaker of one queue, for any number of threads. Durations are seconds.

    *Closed*, it lets every job run. It *opens* when at least ``min_samples`` runs ended within
    ``window`` and the share ``failure_threshold`` of them failed. After ``cooldown`` it is
    *half-open*: it lets one job run, closes if that job completes, and opens again if it fails.
    """

    def __init__(
        self,
        queue: str,
        *,
        failure_threshold: float,
        window: float,
        cooldown: float,
        min_samples: int,
        clock: Callable[[], float] = local_clock,
    ) -> None:
        self.queue = queue
        self._threshold = failure_threshold
        self._window = window
        self._cooldown = cooldown
        self._min_samples = min_samples
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._period = 0
        self._since = clock()
        self._on_trial = False
        self._parts: deque[_Part] = deque()

    @property
    def state(self) -> BreakerState:
        """The state. One that is open stays so until a job is asked for after its cooldown."""
        return self._state

    def admit(self) -> Ticket | None:
        """Return a ticket for one job, to be given back with ``record()`` or ``cancel()``. Return
        ``None`` if no job may run now.
        """
        if self.state is BreakerState.CLOSED:
            return Ticket(self._period)
        with self._lock:
            before = self._state
            if before is BreakerState.OPEN and self._clock() - self._since >= self._cooldown:
                self._become(BreakerState.HALF_OPEN)
            admitted = self._state is BreakerState.CLOSED or (
                self._state is BreakerState.HALF_OPEN and not self._on_trial
            )
            self._on_trial |= admitted and self._state is BreakerState.HALF_OPEN
            ticket = Ticket(self._period) if admitted else None
            after = self._state
        self._announce(before, after)
        return ticket

    def record(self, ticket: Ticket, *, failed: bool) -> None:
        """Count the end of the run that has ``ticket``."""
        with self._lock:
            before = self._state
            if ticket.period != self._period:
                return
            if before is BreakerState.HALF_OPEN:
                self._become(BreakerState.OPEN if failed else BreakerState.CLOSED)
            elif before is BreakerState.CLOSED:
                self._count(failed)
                if failed and self._is_too_much():
                    self._become(BreakerState.OPEN)
            after = self._state
        self._announce(before, after)

    def cancel(self, ticket: Ticket) -> None:
        """Give back a ticket with which no job ran, or whose job says nothing: it was released."""
        with self._lock:
            if ticket.period == self._period:
                self._on_trial = False

    def _count(self, failed: bool) -> None:
        now = self._clock()
        self._forget(now)
        if not self._parts or now - self._parts[-1].since >= self._window / PARTS:
            self._parts.append(_Part(now))
        self._parts[-1].runs += 1
        self._parts[-1].failures += failed

    def _forget(self, now: float) -> None:
        while self._parts and now - self._parts[0].since > self._window:
            self._parts.popleft()

    def _is_too_much(self) -> bool:
        runs = sum(part.runs for part in self._parts)
        failures = sum(part.failures for part in self._parts)
        return runs >= self._min_samples and failures >= self._threshold * runs

    def _become(self, state: BreakerState) -> None:
        self._state = state
        self._period += 1
        self._since = self._clock()
        self._on_trial = False
        self._parts.clear()

    def _announce(self, before: BreakerState, after: BreakerState) -> None:
        """Outside the lock: a receiver may take its time."""
        if after is not before:
            signals.breaker_changed.send_robust(
                sender=Breaker, queue=self.queue, before=before, state=after
            )
