"""``manage.py work``: one process that claims jobs of the ready-made table, runs them and ends
them.

The main thread claims jobs in batches (``intake``) while others run the handlers, in threads
(``crew``) or, if they are ``async def``, in an event loop (``loop``), and ends done jobs in groups
(``in_hand``). Full groups are ended in a thread of their own (``ender``), small ones in the main
thread. When there is nothing to do, the main thread waits for its ``bell``. See docs/queue.md.

A handler's writes and the end of its job are two transactions, unless the handler ends its lease in
its own. If a worker is killed in between, the job is done but not marked as done, and runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from django.db import Error, connections, models, reset_queries

from jobreaper import conf
from jobreaper.db import in_words, is_lost, is_transient, may_be_outage
from jobreaper.identity import local_clock
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import Run
from jobreaper.queue.bell import Bell, Listener
from jobreaper.queue.handlers import Handler, can_find, find, handlers
from jobreaper.queue.lane import make_lanes
from jobreaper.queue.pulse import Pulse
from jobreaper.queue.reach import Reach
from jobreaper.queue.runs import Tally
from jobreaper.queue.unhandled import report_hidden, report_unhandled, unhandled
from jobreaper.queue.wear import Wear
from jobreaper.tables import table_of

logger = logging.getLogger("jobreaper.work")

# Jobs per claim. With half as many, a job takes a tenth longer. Time, not this number, limits what
# runs again after a lost worker.
DEFAULT_BATCH: Final = 1000

# An idle worker polls for jobs this often. A notification wakes it sooner, except through pgbouncer
# in transaction mode, where none arrive. Polling also finds scheduled jobs and retries.
DEFAULT_POLL_SEC: Final = 1.0

# A worker that was told to stop tries to end its jobs for this long after the last one.
LAST_TRIES_SEC: Final = 5.0

# The number of jobs that run at once in the event loop. They share one database connection.
DEFAULT_ASYNC_CONCURRENCY: Final = 100

# Running jobs have this time to end after the worker was told to stop. Kubernetes and others kill
# it after 30 seconds.
DEFAULT_SHUTDOWN_SEC: Final = 25.0

# Types without a handler are searched for and reported this often.
REPORT_SEC: Final = 60.0

# An idle worker looks this often for tasks in modules that nothing has imported yet.
FIND_SEC: Final = 5.0


class Worker:
    """Runs due jobs until it is told to stop.

    Args:
        types: only these types; by default all that have a handler.
        stages: only these stages.
        queues: only these queues.
        model: the job table's model.
        concurrency: the number of threads that run handlers.
        async_concurrency: the maximum number of ``async def`` handlers that run at once.
        batch: the maximum number of jobs per claim.
        poll_sec: how often an idle worker polls for jobs.
        listen: whether notifications also wake it.
        shutdown_sec: how long running jobs may take to end after ``stop()``.
        interrupts: whether a handler is interrupted when its lease is lost or this time is over.
        replaceable: whether a handler that does not end when it has to stops this worker, so that
            another process takes its place. Otherwise, another thread does.
        wear: when this worker has done enough and stops.
        tell_hard_end: see ``Crew``.
    """

    def __init__(
        self,
        *,
        types: Iterable[str] | None = None,
        stages: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        model: type[models.Model] = Job,
        concurrency: int = 1,
        async_concurrency: int = DEFAULT_ASYNC_CONCURRENCY,
        batch: int = DEFAULT_BATCH,
        poll_sec: float = DEFAULT_POLL_SEC,
        listen: bool = True,
        shutdown_sec: float = DEFAULT_SHUTDOWN_SEC,
        interrupts: bool = True,
        replaceable: bool = False,
        wear: Wear | None = None,
        tell_hard_end: Callable[[float], object] | None = None,
    ) -> None:
        self._table = table_of(model)
        self._chosen = None if types is None else frozenset(types)
        self.handlers: dict[str, Handler] = {}
        self.handlers = self._new_handlers(self._chosen or ())
        # The number of jobs that could not be ended; their leases run out.
        self.left_behind = 0
        self._bell = Bell()
        self._pulse = Pulse(self._bell.ring)
        self._listens = listen and conf.settings().notify
        self._listener: Listener | None = None
        self._reach = Reach(self._table)
        self._stopping, self._stopped_at = False, 0.0
        self._lanes = make_lanes(
            self.handlers,
            table=self._table,
            stages=stages,
            queues=queues,
            threads=concurrency,
            tasks=async_concurrency,
            batch=batch,
            poll_sec=poll_sec,
            reach=self._reach,
            ring=self._bell.ring,
            has_ended=self._look_now,
            interrupts=interrupts,
            tell_hard_end=tell_hard_end,
            broken=self._break,
            is_stopping=lambda: self._stopping,
            replaces=not replaceable,
            may_grow=can_find(),
        )
        self._wear = wear or Wear()
        self._shutdown_sec = shutdown_sec
        # When running jobs have to end, if they have to.
        self._leaves_at: float | None = None
        self._gave_up = False
        self._broken_by: BaseException | None = None
        self._next_report = self._next_find = 0.0
        self._refusal = ""
        self._next_refusal = 0.0

    @property
    def tally(self) -> Tally:
        """The counts so far."""
        return Tally.sum(lane.hand.tally for lane in self._lanes)

    @property
    def is_short(self) -> bool:
        """Whether another process should take the place of this one, which is ``replaceable``: one
        of its threads runs a handler that does not end.
        """
        return any(lane.crew.is_short for lane in self._lanes)

    @property
    def hanging(self) -> int:
        """The number of threads whose handlers did not end when they had to and still run. The
        process need not wait for them.
        """
        return sum(lane.crew.hanging for lane in self._lanes)

    def running(self) -> list[Run]:
        """Return the runs that are going on."""
        return [run for lane in self._lanes for run in lane.crew.running()]

    @property
    def _is_idle(self) -> bool:
        """Whether no job is running."""
        return all(lane.hand.is_idle for lane in self._lanes)

    def why_not_live(self) -> list[str]:
        """Return why a new process should take its place, for probes, in any other thread."""
        still_sec = self._pulse.still_sec()
        troubles = [f"the main thread has stood still for {still_sec:.0f} s"] if still_sec else []
        return [*troubles, *heartbeat.heart.why_not_beating()]

    def why_not_ready(self) -> list[str]:
        """Return why this worker claims no jobs for now, for probes, in any thread."""
        found = {
            "it has not started": not self._pulse.number,
            "it was told to stop": self._stopping,
            "the database does not answer": not self._reach.is_there,
            "heartbeats cannot connect": heartbeat.heart.is_hindered(self._table.alias),
        }
        return [trouble for trouble, is_there in found.items() if is_there]

    def stop(self, *, at_once: bool = False) -> None:
        """Stop claiming, give back the jobs that wait, and let the others end for ``shutdown_sec``
        or, with ``at_once``, not at all. Then interrupt them and give them back. A signal handler
        may call this.
        """
        now = local_clock()
        leaves_at = now if at_once else now + self._shutdown_sec
        self._leaves_at = min(leaves_at, self._leaves_at or leaves_at)
        self._retire()

    def _retire(self) -> None:
        """Stop claiming, give back the jobs that wait, and let the others end."""
        if not self._stopping:
            self._stopped_at = local_clock()
            self._stopping = True
        if self._listener is not None:
            self._listener.stop()
        self._bell.ring()

    def run(self, *, once: bool = False) -> Tally:
        """Run jobs until ``stop()``, or with ``once`` until none is due, and return the counts.

        Raises:
            RuntimeError: a thread that runs handlers ended with an exception.
        """
        if self._listens and not once:
            self._listener = Listener(self._table, lambda: self._look_now(heard=True))
            self._listener.start()
        heartbeat.heart.keep_connected(self._table.alias)
        for lane in self._lanes:
            lane.crew.start()
        try:
            while self._turn(once):
                pass
        finally:
            self._wind_up()
            heartbeat.heart.let_disconnect(self._table.alias)
        if self._broken_by is not None:
            raise RuntimeError("a thread that ran handlers has ended") from self._broken_by
        return self.tally

    def _wind_up(self) -> None:
        """Let running jobs end, start no others, and end what can be ended."""
        self._retire()
        for lane in self._lanes:
            lane.hand.take_back()
        self._reach.give_up()
        while not self._is_idle:
            self._look_after_crews()
            self._bell.wait(self._next_moment_of_crews())
        for lane in self._lanes:
            lane.dismiss()
        if self._listener is not None:
            self._listener.join()
        for lane in self._lanes if not self._gave_up else ():
            with suppress(Error):
                lane.hand.give_back(at_once=True)
            with suppress(Error):
                lane.end_done(at_once=True)
        left = sum(lane.hand.let_go() for lane in self._lanes)
        self.left_behind = left + self.tally.refused

    def _look_after_crews(self) -> None:
        for lane in self._lanes:
            if self._leaves_at is not None and local_clock() >= self._leaves_at:
                lane.crew.leave()
            lane.crew.look_after()
        if self.is_short and not self._stopping:
            self._retire()

    def _next_moment_of_crews(self) -> float | None:
        moments = [lane.crew.next_moment() for lane in self._lanes]
        if not (self._is_idle or self._lanes[0].crew.is_leaving):
            moments.append(self._leaves_at)
        return _first(moments)

    def _turn(self, once: bool) -> bool:
        """Do what is necessary now, wait until there is more, and return whether to continue."""
        # With DEBUG, Django stores every statement until the next request, and there is none here.
        reset_queries()
        self._pulse.beat()
        self._look_after_crews()
        try:
            if not self._reach.is_there:
                self._reach.find()
            for lane in self._lanes:
                lane.end_done()
            self._look_at_wear()
            for lane in self._lanes:
                lane.give_back(everything=self._stopping)
            if not self._stopping and self._claim(once):
                return True
        except Error as error:
            if once:
                raise
            self._bear(error)
        if (once or self._stopping) and not any(lane.hand for lane in self._lanes):
            return False
        self._gave_up = self._stopping and self._has_tried_enough
        if self._gave_up:
            return False
        self._bell.wait(self._next_moment())
        return True

    def _look_at_wear(self) -> None:
        why = self._wear.is_enough(self.tally.claimed - sum(lane.hand.left for lane in self._lanes))
        if why is not None and not self._stopping:
            logger.info("this worker ends, and another may take its place: %s", why)
            self._retire()

    def _bear(self, error: Error) -> None:
        """Continue after a database error."""
        connection = connections[self._table.alias]
        if may_be_outage(error):
            logger.warning("the database did not answer, trying again: %s", in_words(error))
        elif is_transient(connection, error):
            # As on a standby that is not promoted yet.
            logger.warning("the database cannot do it now, trying again: %s", in_words(error))
        else:
            self._report_refusal(self._table.in_words(error))
        if is_lost(connection):
            self._reach.lose()
        connection.close()
        for lane in self._lanes:
            lane.intake.look_later()

    def _report_refusal(self, why: str) -> None:
        """Say at once, and then now and then, that the table itself refuses what is written."""
        now = local_clock()
        if why == self._refusal and now < self._next_refusal:
            return
        self._refusal, self._next_refusal = why, now + REPORT_SEC
        logger.error(
            "the database refuses what this worker sends about %s, whatever the job: %s. Jobs wait "
            "until a trigger or a constraint is changed, a right is granted (see Rights in "
            "docs/queue.md), or a migration is run",
            self._table.name,
            why,
        )

    @property
    def _has_tried_enough(self) -> bool:
        """Whether no job is running any more, and the rest could not be ended for a while."""
        last = max(self._stopped_at, *(lane.hand.last_ended_at for lane in self._lanes))
        return self._is_idle and local_clock() - last > LAST_TRIES_SEC

    def _next_moment(self) -> float | None:
        """Return when there is something to do that nobody rings for; ``None`` is never."""
        moments = [self._next_moment_of_crews()]
        claims = not self._stopping and self._room != 0
        for lane in self._lanes:
            if self._reach.is_there:
                moments.append(lane.next_moment(claims=claims))
            else:
                moments.append(lane.intake.next_look)
        return _first(moments)

    @property
    def _room(self) -> int | None:
        """How many more jobs this worker may claim, if that is limited."""
        return self._wear.room(self.tally.claimed)

    def _claim(self, once: bool) -> bool:
        """Claim as many jobs as can run soon, and return whether there were any."""
        lanes = [lane for lane in self._lanes if lane.wants_to_claim(once)]
        if not lanes or self._room == 0:
            return False
        if local_clock() >= self._next_report:
            self._next_report = local_clock() + REPORT_SEC
            self._grow()
            report_hidden(self._table)
            report_unhandled(self._table)
        found = [lane.claim(self._room) for lane in lanes]
        if once and not any(found) and (obstacle := heartbeat.heart.obstacle(self._table.alias)):
            raise obstacle
        is_time = once or local_clock() >= self._next_find
        return any(found) or (is_time and self._grow())

    def _new_handlers(self, types: Iterable[str | None]) -> dict[str, Handler]:
        """Return handlers that were declared since, and those that can be found for ``types``."""
        declared = handlers(model := self._table.model)
        found = {type: find(type, model) for type in types if type and type not in declared}
        return {
            type: handler
            for type, handler in {**declared, **found}.items()
            if handler is not None
            and type not in self.handlers
            and (self._chosen is None or type in self._chosen)
        }

    def _grow(self) -> bool:
        """Add handlers for queued jobs that have none yet, and return whether there are any."""
        self._next_find = local_clock() + FIND_SEC
        new = self._new_handlers(unhandled(self._table)) if can_find() else {}
        for type, handler in new.items():
            self.handlers[type] = handler
            next(lane for lane in self._lanes if lane.fits(handler)).add(type, handler)
        return bool(new)

    def _break(self, error: BaseException) -> None:
        """End the worker after an exception that has ended a thread."""
        self._broken_by = error
        self._retire()

    def _look_now(self, heard: bool = False) -> None:
        for lane in self._lanes:
            lane.intake.hear() if heard else lane.intake.look_now()
        self._bell.ring()


def _first(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
