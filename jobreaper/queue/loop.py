"""The event loop that runs a worker's ``async def`` handlers.

A thread takes waiting jobs, as many at once as there is room for, and starts a task for each in the
loop. What the handlers do by ``sync_to_async()``, as Django's own asynchronous methods do, runs in
one more thread, which has their connections. When a job has to end, its task is cancelled.

A handler that swallows that, or that blocks one of these threads, is given up. Since it may be in
the way of others, so are both threads: the next jobs get new ones. The tasks that are left run to
their ends in the old loop, which then ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections, reset_queries

from jobreaper.db import without_details
from jobreaper.exceptions import OpenTransaction
from jobreaper.identity import forks_end_here
from jobreaper.protocol.awaited import to_its_end
from jobreaper.protocol.batch import Run
from jobreaper.protocol.ending import refuse_left_open
from jobreaper.queue.handlers import Handler, kind_of, refuse_unrun
from jobreaper.queue.in_hand import InHand
from jobreaper.queue.reach import Reach
from jobreaper.queue.runs import begin, keep_result, report
from jobreaper.queue.turns import LEAVING_GRACE_SEC, Turn, Turns

logger = logging.getLogger("jobreaper.work")


@dataclass(slots=True, eq=False)
class TaskTurn(Turn):
    """The run of one job as a task in a loop."""

    place: Place = field(kw_only=True)
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    # A transaction was rolled back that may contain its writes.
    undone: OpenTransaction | None = None

    def cancel(self) -> None:
        """Cancel the task, in its loop."""
        if self.task is not None:
            self.task.cancel(str(self.cause))


class Place:
    """A loop in a thread of its own. ``broken`` is called with an exception that has ended it."""

    def __init__(self, name: str, broken: Callable[[Place, BaseException], object]) -> None:
        self._broken = broken
        self._loop = asyncio.new_event_loop()
        self._has_to_end = asyncio.Event()
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        # The number of outages that its connections know of.
        self.outages = 0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop, soon."""
        with suppress(RuntimeError):  # It has ended.
            self._loop.call_soon_threadsafe(function, *args)

    def start(self, work: Callable[[], Any]) -> asyncio.Task[None]:
        """Start a task, in the loop."""
        task = self._loop.create_task(work(), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def close(self) -> None:
        """End the thread as soon as the last task has ended."""
        self.call(self._close)

    def _close(self) -> None:
        self._is_closed = True
        if not self._tasks:
            self._has_to_end.set()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_closed:
            self._close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                stay = runner.get_loop().create_task(self._stay())
                while not stay.done():
                    self._run_until(stay)
        except BaseException as error:
            self._broken(self, error)

    def _run_until(self, end: asyncio.Task[None]) -> None:
        try:
            self._loop.run_until_complete(end)
        # What a handler has started has exited. The others go on.
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error("what a handler has started has exited", exc_info=error)

    async def _stay(self) -> None:
        async with ThreadSensitiveContext():
            self._context = contextvars.copy_context()
            await self._has_to_end.wait()
            await sync_to_async(connections.close_all)()


class Loop(Turns[TaskTurn]):
    """A number of tasks that run jobs of ``hand``.

    Args:
        size: the maximum number of jobs that run at once.
        handlers: by type of job.
        done: called with a run that has ended, in a thread that may use the database.
        hand, ring, broken, is_stopping, tell_hard_end: see ``Turns``.
        replaces: whether another loop takes the place of one that is given up.
    """

    def __init__(
        self,
        size: int,
        *,
        hand: InHand,
        reach: Reach,
        handlers: Mapping[str, Handler],
        done: Callable[[Run], object],
        broken: Callable[[BaseException], object],
        ring: Callable[[], None],
        is_stopping: Callable[[], bool],
        replaces: bool = True,
        tell_hard_end: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(
            hand, ring=ring, broken=broken, is_stopping=is_stopping, tell_hard_end=tell_hard_end
        )
        self._reach = reach
        self._handlers = handlers
        self._done = done
        self._replaces = replaces
        self._room = threading.Semaphore(size)
        self._turns: set[TaskTurn] = set()
        self._places: list[Place] = []
        self._is_short = False
        self._is_dismissed = False
        # The next jobs run in another place, after those that were started.
        self._moving = threading.Lock()
        self._taker = threading.Thread(target=self._take, name="jobreaper-work-take", daemon=True)

    @property
    def is_short(self) -> bool:
        """Whether a loop was given up and not replaced."""
        return self._is_short

    @property
    def hanging(self) -> int:
        """The number of loops that do not end, although they should."""
        left = self._places if self._is_dismissed else self._places[:-1]
        return sum(place.thread.is_alive() for place in left)

    # The main thread

    def start(self) -> None:
        """Start the loop, and the thread that takes jobs."""
        self._settle()
        self._taker.start()

    def _settle(self) -> None:
        name = f"jobreaper-work-loop-{len(self._places)}"
        with self._moving:
            self._places.append(Place(name, self._break_place))

    def _going_on(self) -> Collection[TaskTurn]:
        return list(self._turns)

    def _interrupt(self, turn: TaskTurn) -> None:
        turn.place.call(turn.cancel)

    def _give_up(self, turn: TaskTurn) -> None:
        if not self._end(turn):
            return
        turn.run.error = turn.cause
        is_current = turn.place is self._places[-1]
        replaced = is_current and self._replaces and not self.is_leaving
        logger.error(
            "the handler of %s does not end, and its loop is given up%s: %s",
            kind_of(turn.run.lease),
            " and replaced" if replaced else "",
            turn.cause,
        )
        if replaced:
            self._settle()
            turn.place.close()
        elif is_current:
            self._is_short = True
        self._done(turn.run)

    def dismiss(self) -> None:
        """Take no more jobs, and end the loop."""
        self._hand.dismiss(1)
        self._taker.join()
        self._is_dismissed = True
        place = self._places[-1]
        place.close()
        # Only what handlers have left behind can be in the way.
        place.thread.join(LEAVING_GRACE_SEC)

    # The thread that takes jobs

    def _take(self) -> None:
        run = None
        try:
            while True:
                self._room.acquire()
                self._reach.wait()
                if (run := self._hand.next()) is None:
                    break
                with self._moving:
                    turn = TaskTurn(run, place=self._places[-1])
                    self._turns.add(turn)
                    turn.place.call(self._start, turn)
        except BaseException as error:
            self._break(error, run)

    # The loop

    def _start(self, turn: TaskTurn) -> None:
        # A loop that was blocked may come to this too late.
        if turn in self._turns:
            self._begin(turn)
            turn.task = turn.place.start(lambda: self._work(turn))

    async def _work(self, turn: TaskTurn) -> None:
        error = await self._call(turn)
        # It has ended: a cancellation comes too late.
        with suppress(asyncio.CancelledError):
            await to_its_end(lambda: self._after(turn, error))

    async def _call(self, turn: TaskTurn) -> BaseException | None:
        """Do for an ``async def`` what ``runs.call()`` does for other handlers."""
        lease = turn.run.lease
        handler: Any = self._handlers[kind_of(lease)]
        try:
            if (lost := await to_its_end(lambda: self._before(turn))) is not None:
                return lost
            with forks_end_here():
                returned = await handler(lease.job, lease)
            refuse_unrun(f"the handler of {kind_of(lease)}", returned)
            keep_result(lease, returned)
        # Any exception of a handler affects only its own job.
        except BaseException as raised:
            is_told = isinstance(raised, asyncio.CancelledError) and turn.cause is not None
            return turn.cause if is_told else without_details(raised)
        return None

    def _end(self, turn: TaskTurn) -> bool:
        """Return whether a turn ends now, and has not ended before."""
        with self._ending:
            if turn not in self._turns:
                return False
            self._turns.remove(turn)
        self._tell(turn.run)
        self._room.release()
        return True

    def _break_place(self, place: Place, error: BaseException) -> None:
        for turn in self._going_on():
            if turn.place is place and self._end(turn):
                self._break(error, turn.run)
        self._break(error, None)

    # The thread that has the handlers' connections

    def _before(self, turn: TaskTurn) -> BaseException | None:
        if turn.place.outages != self._reach.outages:
            turn.place.outages = self._reach.outages
            connections.close_all()
        lost = begin(turn.run.lease)
        turn.has_begun = lost is None
        return lost

    def _after(self, turn: TaskTurn, error: BaseException | None) -> None:
        if turn.has_begun:
            error = self._clean_up(turn, error)
            report(turn.run.lease, error)
        if not self._end(turn):
            return
        holding = turn.run.holding
        holding.on_lost = None
        # It may have swallowed what was to end it.
        turn.run.error = error or holding.withdrawal
        self._done(turn.run)

    def _clean_up(self, turn: TaskTurn, error: BaseException | None) -> BaseException | None:
        try:
            refuse_left_open(turn.run.holding, "a handler", {})
        except OpenTransaction as left_open:
            # Nobody knows whose it was, and whose writes were part of it.
            for each in self._going_on():
                each.undone = left_open
        reset_queries()
        for connection in connections.all(initialized_only=True):
            # Others may be reading from one that is merely old.
            if len(self._turns) == 1 or connection.errors_occurred:
                connection.close_if_unusable_or_obsolete()
        return error or turn.undone
