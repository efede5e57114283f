"""``manage.py work``: one process that claims jobs of the ready-made table, runs and ends them.

The main thread claims by the batch while other threads run the handlers. Jobs that are done are
ended by the group: a full one by the thread that filled it, a small one by the main thread. What
that brings stands in docs/queue.md.

A handler's writes and the end of its job are two transactions, unless the handler ends its lease in
its own. A worker killed in between leaves a job that is done and not marked so, and it runs again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

import psycopg
from django.db import Error, close_old_connections, connections, reset_queries
from psycopg.sql import SQL, Identifier

from jobreaper import conf, heartbeat, sql
from jobreaper.db import fetch, in_words, is_lost, may_be_outage, retrying
from jobreaper.handlers import handlers
from jobreaper.lease_groups import Run, claim_group, fail_group, finish_group, release_group
from jobreaper.models import Job
from jobreaper.runs import OUTCOMES, Tally, call, is_loss, unhandled_types
from jobreaper.tables import table_of
from jobreaper.worker import local_clock

logger = logging.getLogger(__name__)

# Jobs a claim. Half as many cost a tenth more; what a lost worker runs again is bounded by the time
# it takes, not by this.
DEFAULT_BATCH: Final = 1000

# An idle worker looks for jobs this often; a notification wakes it sooner, except through pgbouncer
# in transaction mode, where none arrive. Jobs scheduled for later and retries are found by this.
DEFAULT_POLL_SEC: Final = 1.0
POLL_JITTER: Final = 0.1

# How soon the thread that listens sees that it shall stop, or tries to listen again.
LISTEN_SEC: Final = 0.5

# What has waited so long for its turn is given back: others may be idle meanwhile.
LONGEST_WAIT_SEC: Final = 3.0
# It is at most this share of the shortest lease and of the shortest max_runtime: both begin with
# the claim.
LONGEST_WAIT_SHARE: Final = 0.1
# A worker claims what it can run in this share of that, by the pace of its last jobs.
AHEAD_SHARE: Final = 1 / 3

# From one claim to the next the batch grows at most so much: the first jobs tell the pace.
GROWTH: Final = 4
# How much the latest group of jobs weighs in the pace.
PACE_WEIGHT: Final = 0.3

# A job that is done is marked so this soon, alone if need be.
LINGER_SEC: Final = 0.05

# Told to stop, a worker tries for so long after its last job to end what it could not end yet.
LAST_TRIES_SEC: Final = 5.0

# Failed attempts are ended by so many a statement, which compares each with each.
FAILED_AT_ONCE: Final = 100

# Types without a handler are looked for and reported this often.
REPORT_SEC: Final = 60.0


class Worker:
    """Runs due jobs until it is told to stop.

    Args:
        types: only these types; all that have a handler by default.
        stages: only these stages.
        concurrency: how many threads run handlers.
        batch: jobs a claim, at most.
        poll_sec: how often an idle worker looks for jobs.
        listen: whether to be woken by notifications as well.
    """

    def __init__(
        self,
        *,
        types: Iterable[str] | None = None,
        stages: Iterable[str] | None = None,
        concurrency: int = 1,
        batch: int = DEFAULT_BATCH,
        poll_sec: float = DEFAULT_POLL_SEC,
        listen: bool = True,
    ) -> None:
        known = handlers()
        self.handlers = {
            type: handler for type, handler in known.items() if types is None or type in set(types)
        }
        self.stages = None if stages is None else list(stages)
        self.concurrency = concurrency
        self.batch = batch
        self.poll_sec = poll_sec
        self.listen = listen
        self.tally = Tally()
        self._table = table_of(Job)
        # Its put() may be called at any moment, by a signal's handler too; threading.Event's set()
        # may not.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_rung = False
        self._stopping = False
        self._stopped_at = 0.0
        self._gave_up = False
        # How many jobs of this worker could not be ended; their leases run out.
        self.left_behind = 0
        self._broken_by: BaseException | None = None
        # Set while jobs may be started; after how many outages.
        self._reachable = threading.Event()
        self._reachable.set()
        self._outages = 0
        self._waiting: SimpleQueue[Run | None] = SimpleQueue()
        self._done: deque[Run] = deque()
        # To be given back.
        self._unwanted: list[Run] = []
        # Claimed and not ended: waiting, running, done or unwanted.
        self._in_hand: set[Run] = set()
        self._counting = threading.Lock()
        # In the order of their claims; those that have started are dropped when it is looked at.
        self._line: deque[Run] = deque()
        share_sec = conf.settings().shortest_run_sec * LONGEST_WAIT_SHARE
        self._longest_wait_sec = min(LONGEST_WAIT_SEC, share_sec)
        # How many jobs to have waiting or running, by the pace of those before.
        self._window = concurrency
        self._sec_a_job = 0.0
        self._next_claim = 0.0
        self._next_report = 0.0
        self._reported: frozenset[str] = frozenset()

    def stop(self) -> None:
        """Stop claiming, let the running jobs end and give the others back; may be called by a
        signal's handler.
        """
        self._stopped_at = local_clock()
        self._stopping = True
        self._ring()

    def run(self, *, once: bool = False) -> Tally:
        """Run jobs until ``stop()``, with ``once`` until none is due, and return what was done.

        Raises:
            RuntimeError: a thread that runs handlers has ended by an exception.
        """
        threads = [
            threading.Thread(target=self._run_jobs, name=f"jobreaper-work-{n}", daemon=True)
            for n in range(self.concurrency)
        ]
        if self.listen and not once:
            threads.append(
                threading.Thread(target=self._hear, name="jobreaper-work-listen", daemon=True)
            )
        for thread in threads:
            thread.start()
        try:
            while self._turn(once):
                pass
        finally:
            self._wind_up(threads)
        if self._broken_by is not None:
            raise RuntimeError("a thread that ran handlers has ended") from self._broken_by
        return self.tally

    def _wind_up(self, threads: list[threading.Thread]) -> None:
        """Let what runs come to its end, start nothing more, and end what can be ended."""
        self._stopping = True
        self._take_back()
        self._reachable.set()
        for _ in range(self.concurrency):
            self._waiting.put(None)
        for thread in threads:
            thread.join()
        if not self._gave_up:
            with suppress(Error):
                self._give_back()
            with suppress(Error):
                self._end_done(at_once=True)
        left = list(self._in_hand)
        self.left_behind = len(left)
        heartbeat.heart.remove(*(run.lease for run in left))

    def _turn(self, once: bool) -> bool:
        """Do what is to be done now, wait until there is more, and return whether to go on."""
        # With DEBUG, Django keeps every statement until the next request, which never comes here.
        reset_queries()
        try:
            if not self._reachable.is_set():
                self._reach()
            self._end_done()
            if self._stopping or self._is_stuck or self._unwanted:
                self._give_back()
            if not self._stopping and self._claim(once):
                return True
        except Error as error:
            if once:
                raise
            logger.warning("the database did not answer, trying again: %s", in_words(error))
            connection = connections[self._table.alias]
            if is_lost(connection):
                self._hold()
            connection.close()
            self._next_claim = local_clock() + self.poll_sec
        if (once or self._stopping) and not self._in_hand:
            return False
        self._gave_up = self._stopping and self._has_tried_enough
        if self._gave_up:
            return False
        self._wait()
        return True

    def _hold(self) -> None:
        """Start no job before the database was reached: each would be an attempt in vain."""
        self._outages += 1
        self._reachable.clear()

    def _reach(self) -> None:
        connection = self._table.connection()
        statement = sql.render("statements/reach")
        retrying(connection, lambda _: fetch(connection, statement, {}))
        self._reachable.set()

    @property
    def _has_tried_enough(self) -> bool:
        """Whether nothing runs any more, and what is left could not be ended for a while."""
        if len(self._done) + len(self._unwanted) + self._waiting.qsize() < len(self._in_hand):
            return False
        last = max(self._stopped_at, *(run.ended_at for run in list(self._done)[-1:]), 0.0)
        return local_clock() - last > LAST_TRIES_SEC

    def _wait(self) -> None:
        busy = self._done or self._unwanted or self._waiting.qsize()
        wait_sec = LINGER_SEC if busy else max(0.0, self._next_claim - local_clock())
        with suppress(Empty):
            self._bell.get(timeout=min(wait_sec, self.poll_sec))
        self._is_rung = False

    def _ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._bell.put(None)

    @property
    def _left(self) -> int:
        """How many jobs wait for their turn or run."""
        return len(self._in_hand) - len(self._done)

    @property
    def _is_stuck(self) -> bool:
        """Whether a job has waited too long, behind others that take longer than thought."""
        line = self._line
        while line and line[0].started_at:
            line.popleft()
        return bool(line) and local_clock() - line[0].claimed_at > self._longest_wait_sec

    def _claim(self, once: bool) -> bool:
        """Claim as many jobs as can be run soon; return whether there were any."""
        left = self._left
        if self._window > self.concurrency and left > self._window // 2:
            return False
        room = min(self._window - left, self.batch)
        now = local_clock()
        if room <= 0 or (now < self._next_claim and not (once and not self._in_hand)):
            return False
        self._report_unhandled()
        runs = claim_group(self._table, room, types=self.handlers, stages=self.stages)
        self.tally.claimed += len(runs)
        with self._counting:
            self._in_hand.update(runs)
        self._line.extend(runs)
        for run in runs:
            self._waiting.put(run)
        if not runs:
            jitter = random.uniform(1 - POLL_JITTER, 1 + POLL_JITTER)
            self._next_claim = now + self.poll_sec * jitter
        return bool(runs)

    def _run_jobs(self) -> None:
        """Run what waits until told to stop; a thread's whole life."""
        run = None
        outages = self._outages
        try:
            while self._reachable.wait() and (run := self._waiting.get()) is not None:
                if outages != self._outages:
                    # Those that were idle meanwhile have not noticed.
                    outages = self._outages
                    connections.close_all()
                run.started_at = local_clock()
                run.lease.waited_ms = run.waited_ms
                run.error = call(self.handlers[run.lease.job.type], run.lease)
                run.ended_at = local_clock()
                reset_queries()
                if run.error is not None and may_be_outage(run.error):
                    self._hold()
                    self._ring()
                self._done.append(run)
                waiting = self._waiting.qsize()
                if waiting <= self._window // 2:
                    self._ring()
                if len(self._done) >= self.batch:
                    # Here, and not in the main thread, which claims meanwhile.
                    with suppress(Error):
                        self._end_done()
                if run.error is not None or not waiting:
                    close_old_connections()
        except BaseException as error:
            # With a thread less the worker would hold, and beat, jobs that nobody runs.
            self._broken_by = error
            self.stop()
            if run is not None and run not in self._done and run in self._in_hand:
                run.error, run.ended_at = error, local_clock()
                self._done.append(run)
        finally:
            connections.close_all()

    def _end_done(self, *, at_once: bool = False) -> None:
        """End the jobs that are done, together, once there are enough or one has waited enough."""
        done = self._done
        runs: list[Run] = []
        # Another thread may be taking the same ones.
        with suppress(IndexError):
            has_lingered = local_clock() - done[0].ended_at >= LINGER_SEC
            if len(done) < self.batch and self._left and not (has_lingered or at_once):
                return
            while True:
                runs.append(done.popleft())
        if new := [run for run in runs if not run.tried]:
            self._adjust_window(new)
        for run in new:
            run.tried = True
        try:
            self._end(runs)
        finally:
            # What could not be ended now is tried again.
            done.extendleft(run for run in reversed(runs) if run in self._in_hand)

    def _end(self, runs: list[Run]) -> None:
        for run in runs:
            if run.lease.closed:
                self._count(OUTCOMES[run.lease.ended_by], [run])
        not_ended = [run for run in runs if not run.lease.closed]
        lost = [run for run in not_ended if run.error and is_loss(run.lease, run.error)]
        heartbeat.heart.remove(*(run.lease for run in lost))
        self._count("lost", lost)
        ending = finish_group([run for run in not_ended if run.error is None])
        self._count("succeeded", ending.ended)
        self._count("lost", ending.lost)
        failed = [run for run in not_ended if run.error is not None and run in self._in_hand]
        for n in range(0, len(failed), FAILED_AT_ONCE):
            ending = fail_group(failed[n : n + FAILED_AT_ONCE])
            self._count("failed", ending.ended)
            self._count("lost", ending.lost)
        limited = conf.settings().limited_stages
        ended = (run.lease.stage for run in runs if run not in self._in_hand)
        if limited and not limited.isdisjoint(ended):
            # There is a place for another one of its stage.
            self._look_now()

    def _count(self, what: str, runs: list[Run]) -> None:
        with self._counting:
            self._in_hand.difference_update(runs)
            setattr(self.tally, what, getattr(self.tally, what) + len(runs))

    def _adjust_window(self, runs: list[Run]) -> None:
        pace = sum(run.ended_at - run.started_at for run in runs) / len(runs)
        known = self._sec_a_job
        # Slower jobs count at once, quicker ones by and by.
        self._sec_a_job = pace if pace > known else known + (pace - known) * PACE_WEIGHT
        ahead_sec = self._longest_wait_sec * AHEAD_SHARE
        can_run = ahead_sec / max(self._sec_a_job, 1e-6) * self.concurrency
        grown = min(self._window * GROWTH, 2 * self.batch, int(can_run))
        self._window = max(grown, self.concurrency)

    def _give_back(self) -> None:
        """Give back what waits, and what could not be given back before."""
        self._take_back()
        if not self._unwanted:
            return
        self._window = self.concurrency
        ending = release_group(self._unwanted)
        # A heartbeat, perhaps our own, or somebody else has a hand on those that are locked.
        self._unwanted = ending.locked
        self._count("released", ending.ended)
        self._count("lost", ending.lost)

    def _take_back(self) -> None:
        with suppress(Empty):
            while (run := self._waiting.get_nowait()) is not None:
                self._unwanted.append(run)
        self._line.clear()

    def _hear(self) -> None:
        """Ring when jobs are enqueued; a thread's whole life."""
        listen = SQL("LISTEN {}").format(Identifier(self._table.name))
        while not self._stopping:
            connection = heartbeat.own_connection(self._table.alias)
            try:
                with connection.cursor() as cursor:
                    cursor.execute(listen)
                # What came before is found by looking.
                self._look_now()
                while not self._stopping:
                    for _ in connection.connection.notifies(timeout=LISTEN_SEC, stop_after=1):
                        self._look_now()
            except (Error, psycopg.Error) as error:
                logger.info("listening again in a moment: %s", in_words(error))
                connection.close()
                time.sleep(LISTEN_SEC)
        connections.close_all()

    def _look_now(self) -> None:
        self._next_claim = 0.0
        self._ring()

    def _report_unhandled(self) -> None:
        now = local_clock()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_SEC
        found = unhandled_types(self.handlers)
        if found and self._reported != frozenset(found):
            logger.warning("no handler for these types, whose jobs wait: %s", found)
        self._reported = frozenset(found)
