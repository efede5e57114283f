"""The threads that run a worker's jobs: who runs which job, and who does not end.

When a job loses its lease or the worker cannot wait any longer, its handler is interrupted. A
handler that does not end even then is given up: its job counts as done, with the loss as its error,
and its thread takes no other. Such a thread cannot be stopped, so it stays until its handler or the
process ends; the epoch refuses what it still writes, and its connections are its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from django.conf import settings
from django.db import Error, close_old_connections, connections, reset_queries

from jobreaper.db import beginning_in, session_of
from jobreaper.protocol.batch import Run
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.interrupting import Interruptible
from jobreaper.queue.handlers import Handler, kind_of
from jobreaper.queue.in_hand import InHand
from jobreaper.queue.reach import Reach
from jobreaper.queue.runs import NOTHING, call
from jobreaper.queue.turns import Turn, Turns

logger = logging.getLogger("jobreaper.work")


@dataclass(slots=True, eq=False)
class ThreadTurn(Turn):
    """The run of one job in a thread of the crew."""

    interruptible: Interruptible = field(default_factory=Interruptible)


class Member:
    """One thread of a crew. ``turn`` is the job that it runs."""

    thread: threading.Thread
    turn: ThreadTurn | None = None


class Crew(Turns[ThreadTurn]):
    """A number of threads that take jobs from ``hand`` and run them.

    Args:
        size: the number of threads.
        handlers: by type of job.
        done: called with a run that has ended, in its thread or in the one that gives it up.
        hand, ring, broken, is_stopping, tell_hard_end: see ``Turns``.
        interrupts: whether handlers are interrupted.
        replaces: whether another thread takes the place of one that is given up.
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
        interrupts: bool = True,
        replaces: bool = True,
        tell_hard_end: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(
            hand, ring=ring, broken=broken, is_stopping=is_stopping, tell_hard_end=tell_hard_end
        )
        self._size = size
        self._reach = reach
        self._handlers = handlers
        self._done = done
        self._interrupts = interrupts
        self._replaces = replaces
        self._members: list[Member] = []
        self._given_up: list[Member] = []
        self._started = 0
        # What the session of a thread's connection is when it is new.
        self._home: str | None = None

    @property
    def is_short(self) -> bool:
        """Whether threads were given up and not replaced."""
        return len(self._members) < self._size

    @property
    def hanging(self) -> int:
        """The number of handlers that were given up and still run."""
        return sum(member.thread.is_alive() for member in self._given_up)

    # The main thread

    def start(self) -> None:
        """Start the threads."""
        for _ in range(self._size):
            self._enlist()

    def _enlist(self) -> None:
        member, name = Member(), f"jobreaper-work-{self._started}"
        self._started += 1
        member.thread = threading.Thread(target=self._work, args=[member], name=name, daemon=True)
        self._members.append(member)
        member.thread.start()

    def _going_on(self) -> Collection[ThreadTurn]:
        return [turn for member in self._members if (turn := member.turn) is not None]

    def _interrupt(self, turn: ThreadTurn) -> None:
        if self._interrupts and turn.cause is not None:
            turn.interruptible.interrupt(type(turn.cause))

    def _give_up(self, turn: ThreadTurn) -> None:
        with self._ending:
            member = next((member for member in self._members if member.turn is turn), None)
            if member is None:
                return
            member.turn, turn.run.error = None, turn.cause
        self._tell(turn.run)
        self._members.remove(member)
        self._given_up.append(member)
        replaced = self._replaces and not self.is_leaving
        logger.error(
            "the handler of %s does not end, and its thread is given up%s: %s",
            kind_of(turn.run.lease),
            " and replaced" if replaced else "",
            turn.cause,
        )
        if replaced:
            self._enlist()
        self._done(turn.run)

    def dismiss(self) -> None:
        """Wait until the threads, which are not busy, have ended."""
        self._hand.dismiss(len(self._members))
        for member in self._members:
            member.thread.join()

    # The threads

    def _work(self, member: Member) -> None:
        """Run waiting jobs until told to stop. This is all that a thread does."""
        run = None
        outages = self._reach.outages
        try:
            while True:
                self._reach.wait()
                if (run := self._hand.next()) is None:
                    break
                if outages != self._reach.outages:
                    # Threads that were idle have not noticed this.
                    outages = self._reach.outages
                    connections.close_all()
                if not self._run(member, run):
                    break
                if run.error is not None or not self._hand.waiting:
                    close_old_connections()
        except BaseException as error:
            member.turn = None
            # With one thread less, the worker would hold and renew jobs that nothing runs.
            self._break(error, run)
        finally:
            connections.close_all()

    def _where_it_was_claimed(self, holding: Holding) -> AbstractContextManager[None]:
        """Return a context in which a handler's statements begin in the session of the claim: the
        main thread may have been moved, for example to a tenant's schema.
        """
        if holding.session == self._home:
            return NOTHING
        connection = holding.table.connection(holding.alias)
        if self._home is None:
            was_open = connection.connection is not None
            try:
                self._home = session_of(connection)
            except Error:
                # Without a connection, the handler finds nothing either.
                return NOTHING
            if not was_open:
                connection.close()
        return beginning_in(connection, self._home, holding.session)

    def _run(self, member: Member, run: Run) -> bool:
        """Run a job. Return whether this thread may go on, since it was not given up meanwhile."""
        member.turn = turn = ThreadTurn(run)
        self._begin(turn)
        within = turn.interruptible if self._interrupts else NOTHING
        with self._where_it_was_claimed(run.holding):
            error = call(self._handlers[kind_of(run.lease)], run.lease, within=within)
        if settings.DEBUG:
            reset_queries()
        with self._ending:
            if member.turn is not turn:
                return False
            member.turn = None
        self._tell(run)
        run.holding.on_lost = None
        # It may have caught the exception that was to end it.
        run.error = error or run.holding.withdrawal
        if turn.cause is not None:
            # A statement may have been interrupted.
            connections.close_all()
        self._done(run)
        return True
