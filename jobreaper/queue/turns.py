"""When a handler has to end, and what becomes of one that does not: the same for handlers in
threads (``crew``) and in an event loop (``loop``).
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from jobreaper.exceptions import LeaseLost
from jobreaper.identity import local_clock
from jobreaper.protocol.batch import Run
from jobreaper.queue.in_hand import InHand

# A handler whose lease is lost has this time to end before it is given up.
GRACE_SEC: Final = 5.0
# The same at shutdown: with the usual 25 seconds before, a worker ends within 30.
LEAVING_GRACE_SEC: Final = 2.0


@dataclass(slots=True, eq=False)
class Turn:
    """The run of one job by its handler."""

    run: Run
    # Why and when its handler was told to end.
    cause: LeaseLost | None = None
    told_at: float = 0.0

    def has_to_end(self) -> LeaseLost | None:
        """Return why its handler has to end, if it has to."""
        holding = self.run.holding
        if holding.hard_end is not None and local_clock() >= holding.hard_end:
            if holding.is_closed:
                return LeaseLost(f"it has ended {holding!r}, and its max_runtime is over")
            holding.is_lost()
            holding.announce_loss()
        return holding.loss or holding.withdrawal


T = TypeVar("T", bound=Turn)


class Turns(ABC, Generic[T]):
    """The turns that are going on in one place.

    Args:
        hand: where the jobs wait.
        ring: called when a handler has to end, so that ``look_after()`` is due.
        broken: called with an exception that has ended a thread which takes jobs.
        is_stopping: the answer of ``lease.stopping``.
        tell_hard_end: called with when the first of the running handlers has to have ended, in
            seconds of ``local_clock()``, whenever that changes.
    """

    def __init__(
        self,
        hand: InHand,
        *,
        ring: Callable[[], None],
        broken: Callable[[BaseException], object],
        is_stopping: Callable[[], bool],
        tell_hard_end: Callable[[float], object] | None,
    ) -> None:
        self._hand = hand
        self._ring = ring
        self._broken = broken
        self._is_stopping = is_stopping
        self._tell_hard_end = tell_hard_end
        # A job ends either where it runs or by being given up.
        self._ending = threading.Lock()
        # When the main thread looks after the handlers, if nobody rings before.
        self._next_look = math.inf
        # Whether every handler was told to end.
        self.is_leaving = False

    @property
    @abstractmethod
    def is_short(self) -> bool:
        """Whether something was given up and not replaced."""

    @property
    @abstractmethod
    def hanging(self) -> int:
        """How much was given up and still runs, so that the process need not wait for it."""

    @abstractmethod
    def start(self) -> None:
        """Start to take jobs."""

    @abstractmethod
    def dismiss(self) -> None:
        """Take no more jobs, and wait for the end of what is not given up: no job is running."""

    @abstractmethod
    def _going_on(self) -> Collection[T]:
        """Return the turns."""

    @abstractmethod
    def _interrupt(self, turn: T) -> None:
        """Tell a handler to end."""

    @abstractmethod
    def _give_up(self, turn: T) -> None:
        """End a turn without its handler."""

    def running(self) -> list[Run]:
        """Return the runs that are going on."""
        return [turn.run for turn in self._going_on()]

    def leave(self) -> None:
        """Tell every handler to end now: the worker gives their jobs back."""
        self.is_leaving = True

    def look_after(self) -> None:
        """Interrupt handlers whose time is over, and give up those that do not end."""
        for turn in self._going_on():
            if turn.cause is not None:
                if local_clock() >= self._ends_at(turn):
                    self._give_up(turn)
                continue
            if self.is_leaving:
                turn.run.holding.withdraw()
            turn.cause = turn.has_to_end()
            if turn.cause is not None:
                turn.told_at = local_clock()
                self._interrupt(turn)

    def next_moment(self) -> float | None:
        """Return when to look after them if nobody rings before; ``None`` is never."""
        # First this: a turn that begins meanwhile then rings.
        self._next_look = math.inf
        moments = [
            self._ends_at(turn) if turn.cause is not None else turn.run.holding.hard_end
            for turn in self._going_on()
        ]
        self._next_look = min((at for at in moments if at is not None), default=math.inf)
        return None if self._next_look == math.inf else self._next_look

    def _ends_at(self, turn: T) -> float:
        return turn.told_at + (LEAVING_GRACE_SEC if self.is_leaving else GRACE_SEC)

    def _begin(self, turn: T) -> None:
        """Record that a turn begins now, once it is among those that are going on."""
        holding = turn.run.holding
        holding.is_stopping = self._is_stopping
        holding.on_lost = lambda _: self._ring()
        if self.is_leaving or (holding.hard_end or math.inf) < self._next_look:
            self._ring()
        self._tell(turn.run)
        turn.run.start()

    def _tell(self, run: Run) -> None:
        """Tell the first hard end, which a run that begins or has ended may have changed."""
        if self._tell_hard_end is None or run.holding.hard_end is None:
            return
        with self._ending:
            ends = [turn.run.holding.hard_end for turn in self._going_on()]
            self._tell_hard_end(min((at for at in ends if at is not None), default=math.inf))

    def _break(self, error: BaseException, run: Run | None) -> None:
        """End the worker after an exception that has ended a thread, perhaps with a run."""
        if run is not None and not run.ended_at:
            run.error = error
            self._hand.put_done(run)
        self._broken(error)


class FirstEnd:
    """Tells the first of the hard ends that several places tell."""

    def __init__(self, tell: Callable[[float], object]) -> None:
        self._tell = tell
        self._ends: dict[str, float] = {}
        self._telling = threading.Lock()

    def of(self, place: str) -> Callable[[float], None]:
        """Return what a place calls with its own first end."""

        def told(hard_end: float) -> None:
            with self._telling:
                self._ends[place] = hard_end
                self._tell(min(self._ends.values()))

        return told
