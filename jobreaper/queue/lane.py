"""The way of a worker's jobs, from the claim to the end.

A worker has a lane for handlers in threads and one for those in an event loop, so that neither
waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.db import Error

from jobreaper import conf
from jobreaper.db import may_be_outage
from jobreaper.identity import local_clock
from jobreaper.protocol.batch import Run
from jobreaper.queue.crew import Crew
from jobreaper.queue.ender import Ender
from jobreaper.queue.handlers import Handler, is_async
from jobreaper.queue.in_hand import InHand
from jobreaper.queue.intake import Intake
from jobreaper.queue.loop import Loop
from jobreaper.queue.reach import Reach
from jobreaper.queue.turns import FirstEnd, Turns
from jobreaper.tables import JobTable

# Makes what runs the jobs of a hand, and calls its second argument with each run that has ended.
Recruit = Callable[[InHand, Callable[[Run], object]], Turns[Any]]


class Lane:
    """Jobs that are claimed by ``intake``, run by ``crew`` and, in the meantime, in ``hand``.

    Args:
        batch: the maximum number of jobs that are ended together.
        ring: wakes the worker's main thread.
        has_ended: called when a job of a limited stage or queue has ended, which makes room.
        broken: called with an exception that has ended a thread of the lane.
        crew: makes what runs the jobs.
        handlers: by type; those that are added are seen by what runs the jobs.
        is_for_async: whether they are ``async def``.
    """

    def __init__(
        self,
        intake: Intake,
        batch: int,
        *,
        reach: Reach,
        ring: Callable[[], None],
        has_ended: Callable[[], None],
        broken: Callable[[BaseException], object],
        crew: Recruit,
        handlers: dict[str, Handler],
        is_for_async: bool,
    ) -> None:
        self.intake = intake
        self._handlers = handlers
        self._is_for_async = is_for_async
        self.hand = InHand(batch)
        self.crew = crew(self.hand, self.take_in)
        self._ender = Ender(self.end_group, ring=ring, broken=broken)
        self._reach = reach
        self._ring = ring
        self._has_ended = has_ended

    def wants_to_claim(self, once: bool) -> bool:
        """Return whether it is time for a claim, and there is room."""
        is_time = local_clock() >= self.intake.next_look or (once and not self.hand)
        return is_time and self.intake.has_room(self.hand.left)

    def claim(self, most: int | None) -> bool:
        """Claim as many jobs as can run soon, at most ``most``, and return whether there were
        any.
        """
        runs = self.intake.claim(self.hand.left, most)
        self.hand.take(runs)
        return bool(runs)

    def fits(self, handler: Handler) -> bool:
        """Return whether the jobs of a handler belong here."""
        return self._is_for_async == is_async(handler)

    def add(self, type: str, handler: Handler) -> None:
        """Run the jobs of one more type."""
        self._handlers[type] = handler
        self.intake.add_type(type)

    def take_in(self, run: Run) -> None:
        """Take in a run that has ended, in its thread."""
        hand = self.hand
        if run.error is not None and may_be_outage(run.error):
            self._reach.lose()
            self._ring()
        is_first = hand.put_done(run)
        if is_first or hand.waiting <= self.intake.window // 2:
            self._ring()
        if hand.groups_done == 1:
            self._ender.tell()
        elif hand.groups_done > 1:
            # It cannot keep up: the handlers wait, since a worker that is killed now has done these
            # jobs in vain.
            with suppress(Error):
                self.end_group()
            self._ring()

    def dismiss(self) -> None:
        """Wait for the end of the lane's threads: no job is running."""
        self.crew.dismiss()
        self._ender.dismiss()

    def end_group(self) -> None:
        """End the jobs that are done together, if they are a full group."""
        self._end(self.hand.take_group())

    def end_done(self, *, at_once: bool = False) -> None:
        """Learn the pace, and end the jobs that are done together, if one has waited long enough or
        no other will be done soon; with ``at_once``, in any case. The main thread calls this.
        """
        self.intake.learn(self.hand.take_ran())
        self._end(self.hand.take_done(at_once=at_once))

    def _end(self, runs: Sequence[Run]) -> None:
        if not runs:
            return
        ended = self.hand.end(runs)
        if conf.settings().limits_any_of({run.holding.stage or "" for run in ended}):
            self._has_ended()

    def give_back(self, *, everything: bool) -> None:
        """Give back jobs that have waited too long, or all waiting jobs, and those that could not
        be given back before.
        """
        hand = self.hand
        if everything or hand.has_unwanted or hand.has_waited(self.intake.longest_wait_sec):
            hand.take_back()
            if hand.give_back():
                self.intake.start_small()

    def next_moment(self, *, claims: bool) -> float | None:
        """Return when there is something to do that nobody rings for, apart from what ``crew``
        says; ``None`` is never.
        """
        moment = self.hand.next_moment(self.intake.longest_wait_sec)
        if not (claims and self.intake.has_room(self.hand.left)):
            return moment
        return self.intake.next_look if moment is None else min(moment, self.intake.next_look)


def make_lanes(
    handlers: Mapping[str, Handler],
    *,
    table: JobTable,
    stages: Iterable[str] | None,
    queues: Iterable[str] | None,
    threads: int,
    tasks: int,
    batch: int,
    poll_sec: float,
    reach: Reach,
    ring: Callable[[], None],
    has_ended: Callable[[], None],
    broken: Callable[[BaseException], object],
    interrupts: bool,
    tell_hard_end: Callable[[float], object] | None,
    may_grow: bool = False,
    **common: Any,
) -> list[Lane]:
    """Return a lane for the handlers in threads and one for those in an event loop, as far as there
    are such handlers, or both if handlers may be added. ``common`` are further arguments of
    ``Crew`` and ``Loop``.
    """
    in_loop = {type: handler for type, handler in handlers.items() if is_async(handler)}
    in_threads = {type: handlers[type] for type in handlers.keys() - in_loop.keys()}
    wanted = {
        "stages": None if stages is None else list(stages),
        "queues": None if queues is None else list(queues),
    }
    common |= {"reach": reach, "ring": ring, "broken": broken}
    first_end = None if tell_hard_end is None else FirstEnd(tell_hard_end)

    def lane(own: dict[str, Handler], concurrency: int, crew: Recruit) -> Lane:
        intake = Intake(
            table,
            types=own,
            **wanted,
            concurrency=concurrency,
            batch=batch,
            poll_sec=poll_sec,
        )
        of_kind: dict[str, Any] = {"crew": crew, "handlers": own, "is_for_async": own is in_loop}
        told: dict[str, Any] = {"ring": ring, "has_ended": has_ended, "broken": broken}
        return Lane(intake, batch, reach=reach, **told, **of_kind)

    def crew(hand: InHand, done: Callable[[Run], object]) -> Crew:
        tell = None if first_end is None else first_end.of("crew")
        options = {"hand": hand, "done": done, "tell_hard_end": tell, **common}
        return Crew(threads, handlers=in_threads, interrupts=interrupts, **options)

    def loop(hand: InHand, done: Callable[[Run], object]) -> Loop:
        tell = None if first_end is None else first_end.of("loop")
        options = {"hand": hand, "done": done, "tell_hard_end": tell, **common}
        return Loop(tasks, handlers=in_loop, **options)

    has_threads = bool(in_threads or not in_loop or may_grow)
    lanes = [lane(in_threads, threads, crew)] if has_threads else []
    return [*lanes, lane(in_loop, tasks, loop)] if in_loop or may_grow else lanes
