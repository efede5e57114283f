"""A lease: held and renewed while the work goes on, then finished, failed or released.

Every write names the lease's epoch, and the row's epoch goes up whenever the lease is taken away.
So a worker that lost its lease writes nothing and is told so by ``LeaseLost``. It names the worker
too: a failover to a standby that had not yet heard of a claim gives out its epoch a second time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from django.db import models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from jobreaper import conf, heartbeat, signals
from jobreaper.db import Depth, close_left_open, fetch, is_open, on_commit, retrying, storable
from jobreaper.exceptions import LeaseClosed, LeaseLost, OpenTransaction
from jobreaper.heartbeat import Beat
from jobreaper.policies import LONGEST_MS
from jobreaper.states import EventType, Status
from jobreaper.tables import JobTable
from jobreaper.worker import local_clock

LONGEST_CODE: Final = 200


class Lease:
    """A worker's right to one job until ``expires_at``, under one epoch.

    As a context manager it is beaten in the background until the block ends. It may be used from
    any thread of the process that claimed it.
    """

    def __init__(
        self,
        table: JobTable,
        alias: str,
        job: Any,
        worker: str,
        runs_out_at: float,
        length: float,
        key: Any = None,
    ) -> None:
        self.table = table
        self.alias = alias
        self.job = job
        self.worker = worker
        self.pk = job.pk
        # As a statement's parameter; a claim of many jobs has it at hand.
        self.key = table.prepare_pk(job.pk) if key is None else key
        self.epoch, self.stage, self.attempt, self.expires_at = table.lease_values(job)
        self.length_sec = length
        self._runs_out_at = runs_out_at
        self._lost: LeaseLost | None = None
        self._closed = False
        self._closing: Any = None
        # The verb that has ended it, where it is closed.
        self.ended_by: str | None = None
        # Whether it was ended in a transaction of which Django does not know.
        self._ended_unseen = False
        # Other sessions see neither a claim nor an ending before its transaction is committed, and
        # an ending before this process has heard that it is.
        self._claim_is_committed = False
        self.ending = False
        self._lock = threading.Lock()
        # Whether a signal about it is one of a batch's.
        self.in_batch = False
        # How long the job waited in this process for its turn after the claim.
        self.waited_ms = 0.0
        # Called once, from whichever thread finds the lease lost.
        self.on_lost: Callable[[LeaseLost], None] | None = None

    def __repr__(self) -> str:
        return f"<Lease {self.table.name} {self.pk} epoch {self.epoch}>"

    def __enter__(self) -> Lease:
        heartbeat.heart.add(self)
        signals.run_started.send_robust(self.table.model, lease=self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        heartbeat.heart.remove(self)
        signals.run_ended.send_robust(self.table.model, lease=self, error=error)

    @property
    def lost(self) -> bool:
        """Whether the lease is gone: the database said so, or the local clock says that it must
        have run out meanwhile. Once ``True`` it stays so, and the lease is not renewed any more.
        """
        if self._lost is None and not self._closed and local_clock() >= self._runs_out_at:
            # No lease outlives its deadline, so an end that is the deadline's was known beforehand.
            at_deadline = self.expires_at == self.table.deadline(self.job)
            self._mark_lost("deadline" if at_deadline else "clock", None, None)
        return self._lost is not None

    @property
    def closed(self) -> bool:
        """Whether this process has finished, failed or released the lease.

        A verb inside a transaction counts until that transaction is rolled back.
        """
        return self._closed or self._is_closing

    def check(self) -> None:
        """Return if the work may go on. Asks no server, so it can be called in a tight loop.

        Raises:
            LeaseLost: the lease is lost: stop, and write nothing for this job.
        """
        if self.lost and self._lost is not None:
            raise self._lost

    def heartbeat(self) -> None:
        """Renew the lease now, on this thread's connection.

        Raises:
            LeaseLost: the lease is lost.
            LeaseClosed: it was finished, failed or released.
        """
        self._refuse_if_closed("heartbeat")
        if self._lost is None:
            connection = self.table.connection(self.alias)
            retrying(connection, lambda _: heartbeat.beat(connection, self.table, [self]))
        self.check()

    def finish(self) -> None:
        """Mark the job as done. Inside ``transaction.atomic()`` that is committed with the work's
        own writes, or not at all.

        Raises:
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        self._end("finish", {})

    def fail(
        self,
        code_or_exception: str | BaseException,
        reason: str | None = None,
        *,
        retry: bool = True,
        delay_sec: float | None = None,
    ) -> bool:
        """End this attempt as failed: back to the queue with the stage's backoff while attempts are
        left, ``failed`` for good otherwise or with ``retry=False``. Return whether it went back.

        An exception gives its class as ``fail_code`` and its message as ``fail_reason``.
        ``delay_sec`` takes the place of the backoff; what is no time at all or longer than a year
        counts as none or as a year, since an error here would leave the job to its lease.

        Raises:
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        code, why = failure(code_or_exception, reason)
        event = self._end(
            "fail",
            {
                "fail_code": code,
                "fail_reason": why,
                "retry": retry,
                "delay_sec": None if delay_sec is None else _at_most_a_year(delay_sec),
                "policies": conf.settings().policies_json,
            },
        )
        return bool(event["type"] == EventType.JOB_RETRIED)

    def release(self) -> None:
        """Give the job back unharmed, as on shutdown: it is due at once, the attempt not counted.

        Raises:
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        self._end("release", {})

    def save_job(self, using: str, save: Callable[[], object]) -> None:
        """Call ``save``, which writes ``job``, in a transaction that finds the lease still ours.

        Once it was called it is not called again: its signals are the caller's.

        Raises:
            LeaseLost: the epoch has gone up since the claim; nothing was written.
        """
        rows = self.table.model._base_manager.using(using).select_for_update(no_key=True)
        # Once the job has ended it is nobody's, and its epoch is still this lease's.
        ours = models.Q(locked_by=self.worker) | models.Q(locked_by=None)
        held = rows.filter(ours, pk=self.pk, lease_epoch=self.epoch).values_list("pk")
        is_held = False

        def save_once(_: bool) -> None:
            nonlocal is_held
            with transaction.atomic(using=using):
                is_held = bool(list(held.all()))
                if is_held:
                    save()

        connection = self.table.connection(using)
        retrying(connection, save_once, not_after=lambda: is_held)
        if not is_held:
            self.rejected(connection, "save", tried_before=False)

    def close_left_open(self, before: Mapping[str, Depth]) -> list[str]:
        """Roll back what was begun on this thread's connections and not ended since ``before``, as
        ``db.close_left_open()`` does, and return the aliases. A lease that was ended there stands
        again.
        """
        undone = close_left_open(before)
        if self._ended_unseen and self.alias in undone:
            self._closed = self._ended_unseen = False
            heartbeat.heart.add(self)
        return undone

    def refuse_left_open(self, who: str, before: Mapping[str, Depth]) -> None:
        """Roll back what ``who`` has left open, as ``close_left_open()`` does.

        Raises:
            OpenTransaction: there was a transaction.
        """
        if undone := self.close_left_open(before):
            raise OpenTransaction(
                f"{who} left a transaction open on {', '.join(undone)}, and what it wrote there "
                "is undone"
            )

    @property
    def wants_beats(self) -> bool:
        """Whether the heartbeat thread should renew it."""
        return self._lost is None and not self._closed

    def beaten(self, beat: Beat, sent_at: float) -> None:
        """Take in what a heartbeat sent at ``sent_at`` (local clock, seconds) found."""
        if self.closed:
            return
        if not beat.held:
            if not self._explains(beat):
                self._mark_lost("heartbeat", beat.status, beat.epoch)
        elif beat.remaining_sec is not None:
            self._runs_out_at = sent_at + beat.remaining_sec
            self.expires_at = beat.expires_at
        elif beat.status in self.table.words[Status.PROCESSING]:
            # Locked by some transaction, and ours by the database's own word.
            self._runs_out_at = max(self._runs_out_at, sent_at + self.length_sec)

    def claim_committed(self) -> None:
        """Take in that other sessions can see the claim."""
        self._claim_is_committed = True

    def _explains(self, beat: Beat) -> bool:
        """Return whether it may be this process's own doing that a beat did not find the lease: a
        job whose INSERT and claim are not committed yet, or an ending. Nothing but the lease's own
        endings leaves the epoch as it is.
        """
        if beat.epoch is None:
            return not self._claim_is_committed
        return self.ending or (self._closing is not None and beat.epoch == self.epoch)

    def missed(self) -> None:
        """Take in that a heartbeat could not be sent. A worker that asked to be told is told when
        the lease must have run out; any other finds out when it asks.
        """
        if self.on_lost is not None:
            _ = self.lost

    def _mark_lost(self, reason: str, status: str | None, epoch: int | None) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = self._lost_error(_WHY_LOST[reason], status, epoch)
        signals.lease_lost.send_robust(
            self.table.model, lease=self, reason=reason, status=status, epoch=epoch
        )
        if self.on_lost is not None:
            self.on_lost(self._lost)

    def _lost_error(self, why: str, status: str | None, epoch: int | None) -> LeaseLost:
        now = "" if status is None else f"; the job is now {status} at epoch {epoch}"
        return LeaseLost(
            f"lost the lease of {self.table.name} {self.pk} at epoch {self.epoch}: {why}{now}",
            table=self.table.name,
            pk=self.pk,
            status=status,
            epoch=epoch,
        )

    def _refuse_if_closed(self, verb: str) -> None:
        if self.closed:
            raise LeaseClosed(f"cannot {verb} {self!r}: this worker has ended it already")

    def _end(self, verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._refuse_if_closed(verb)
        connection = self.table.connection(self.alias)
        self.ending = True
        try:
            event = retrying(connection, lambda tried: self._send(connection, verb, params, tried))
            self._close(connection, verb, event)
        except LeaseLost:
            heartbeat.heart.remove(self)
            raise
        finally:
            self.ending = False
        return event

    def _send(
        self,
        connection: BaseDatabaseWrapper,
        verb: str,
        params: Mapping[str, Any],
        tried_before: bool,
    ) -> dict[str, Any]:
        """Send the verb's statement and return the event that it wrote, or that an earlier try did
        whose answer was lost.
        """
        written = fetch(
            connection,
            self.table.statement(verb),
            {
                **params,
                "id": self.key,
                "epoch": self.epoch,
                "worker": self.worker,
                "waited_ms": self.waited_ms,
            },
        )
        if written:
            event: dict[str, Any] = json.loads(written[0][0])
            return event
        return self.rejected(connection, verb, tried_before)

    def ended(self) -> None:
        """Take in that a statement for many leases has ended this one."""
        self._closed = True

    def rejected(
        self, connection: BaseDatabaseWrapper, verb: str, tried_before: bool
    ) -> dict[str, Any]:
        """Take in that a statement left the lease out, since it is not ours any more, and put the
        rejected write on record; where an earlier try of the same verb was committed, return the
        event which that wrote.

        Raises:
            LeaseLost: it is lost.
        """
        [(status, epoch, carried_out)] = fetch(
            connection,
            self.table.statement("reject"),
            {
                "id": self.key,
                "epoch": self.epoch,
                "verb": verb,
                "worker": self.worker,
                "stage": self.stage,
                "attempt": self.attempt,
                "tried_before": tried_before,
                "ended_by": [str(event) for event in _ENDED_BY.get(verb, ())],
            },
        )
        if carried_out is not None:
            event: dict[str, Any] = json.loads(carried_out)
            return event
        signals.stale_write_rejected.send_robust(
            self.table.model, lease=self, verb=verb, status=status, epoch=epoch
        )
        error = self._lost_error(f"{verb} was rejected", status, epoch)
        self._lost = self._lost or error
        raise error

    def _close(self, connection: BaseDatabaseWrapper, verb: str, event: dict[str, Any]) -> None:
        def close() -> None:
            self._closed = True
            heartbeat.heart.remove(self)
            ENDINGS[event["type"]].send_robust(
                self.table.model, lease=self, details=event["details"]
            )

        self._closing = close
        self.ended_by = verb
        self._ended_unseen = is_open(connection) and not connection.in_atomic_block
        on_commit(connection, close)

    @property
    def _is_closing(self) -> bool:
        # Django drops the hook when the transaction, or the savepoint it was set in, rolls back.
        if self._closing is None:
            return False
        pending = self.table.connection(self.alias).run_on_commit
        return any(hook[1] is self._closing for hook in pending)


# The signal of each event that ends an attempt.
ENDINGS: Final[Mapping[str, Signal]] = {
    EventType.JOB_FINISHED: signals.job_finished,
    EventType.JOB_RETRIED: signals.job_retried,
    EventType.JOB_FAILED: signals.job_failed,
    EventType.JOB_RELEASED: signals.job_released,
}

_WHY_LOST: Final = {
    "heartbeat": "it was taken away",
    "clock": "its time ran out while the database could not be reached",
    "deadline": "the max_runtime of its stage is over",
}
_ENDED_BY: Final = {
    "finish": (EventType.JOB_FINISHED,),
    "fail": (EventType.JOB_RETRIED, EventType.JOB_FAILED),
    "release": (EventType.JOB_RELEASED,),
}


def failure(
    code_or_exception: str | BaseException, reason: str | None = None
) -> tuple[str, str | None]:
    """Return an attempt's ``fail_code`` and ``fail_reason`` as the database can store them."""
    code: str | BaseException = code_or_exception
    why: object = reason
    if isinstance(code_or_exception, BaseException):
        code = type(code_or_exception).__qualname__
        why = code_or_exception if reason is None else reason
    return storable(code)[:LONGEST_CODE], None if why is None else storable(why)


def _at_most_a_year(sec: float) -> float:
    # In this order NaN is 0.
    return max(0.0, min(sec, LONGEST_MS / 1000))
