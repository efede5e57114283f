"""``Lease``: a worker's right to one job, as users see it.

Every write names the lease's epoch, and the row's epoch increases whenever the lease is taken away.
So a worker that lost its lease writes nothing and gets ``LeaseLost``. Every write names the worker
too: after a failover to a standby that had not received a claim, its epoch is assigned a second
time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

from jobreaper import conf, signals
from jobreaper.db import retrying
from jobreaper.policies import LONGEST_MS
from jobreaper.protocol import checkpoint, heartbeat, outcome, progress
from jobreaper.protocol.awaited import to_its_end
from jobreaper.protocol.ending import end, failure, refusal
from jobreaper.protocol.holding import Holding
from jobreaper.states import EventType


class Lease:
    """A worker's right to one job until ``expires_at``, under one epoch.

    As a context manager, it is renewed in the background until the block ends. You can use it from
    any thread of the process that claimed it. Its phases are those of ``protocol.holding``.
    """

    __slots__ = ("__weakref__", "_holding")

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        holding.lease = self

    def __repr__(self) -> str:
        return repr(self._holding)

    def __enter__(self) -> Lease:
        heartbeat.heart.add(self._holding)
        signals.run_started.send_robust(self._holding.table.model, lease=self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        heartbeat.heart.remove(self._holding)
        self._holding.announce_loss()
        signals.run_ended.send_robust(self._holding.table.model, lease=self, error=error)

    @property
    def job(self) -> Any:
        """The model instance, as it was claimed."""
        return self._holding.job

    @property
    def pk(self) -> Any:
        """The job's key."""
        return self._holding.pk

    @property
    def epoch(self) -> int:
        """The fencing token of this lease."""
        return self._holding.epoch

    @property
    def worker(self) -> str:
        """The id of the worker that claimed the job."""
        return self._holding.worker

    @property
    def expires_at(self) -> datetime | None:
        """When the lease ends, by the database's clock, as of the last heartbeat."""
        return self._holding.expires_at

    @property
    def lost(self) -> bool:
        """Whether the lease is lost: the database said so, or the local clock says that it must
        have run out. Once ``True``, it stays ``True``, and the lease is no longer renewed.
        """
        return self._holding.is_lost()

    @property
    def closed(self) -> bool:
        """Whether this process has finished, failed or released the lease.

        A verb inside a transaction counts unless that transaction is rolled back.
        """
        return self._holding.is_closed

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to stop. A long job may then save its state, release its
        lease and return. It sends no query, so you can ask in a tight loop.
        """
        holding = self._holding
        asks = holding.is_stopping
        return holding.withdrawal is not None or (asks is not None and asks())

    def check(self) -> None:
        """Return if the work may continue. It sends no query, so you can call it in a tight loop.

        Raises:
            LeaseLost: the lease is lost: stop, and write nothing for this job.
            WorkerStopping: the worker cannot wait any longer, and gives the job back.
        """
        holding = self._holding
        if holding.is_lost() and holding.loss is not None:
            holding.announce_loss()
            raise holding.loss
        if holding.withdrawal is not None:
            raise holding.withdrawal

    def heartbeat(self) -> None:
        """Renew the lease now, on this thread's connection.

        Raises:
            LeaseLost: the lease is lost.
            LeaseClosed: it was finished, failed or released.
        """
        holding = self._holding
        if holding.is_closed:
            raise refusal(holding, "heartbeat")
        if holding.loss is None:
            table = holding.table
            connection = table.connection(holding.alias)
            retrying(connection, lambda _: heartbeat.beat(connection, table, [holding]))
        self.check()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the job is. It sends no query: the next heartbeat carries the last report,
        so you can call it in a tight loop, and in a coroutine. It also does what ``check()`` does.

        In a stage with a ``stall_after``, the job has stalled if it reports nothing new for so
        long. A report that says the same as the last one is nothing new.

        Args:
            done: how much is done, from 0; it may be more than ``total``.
            total: of how much, if that is known.
            note: what the job is doing, at most 200 characters; the rest is cut.

        Raises:
            BadProgress: a number is negative, not finite or too large, or the table does not have
                the fields of ``TracksProgress``.
            LeaseLost: the lease is lost: stop, and write nothing for this job.
            LeaseClosed: it was finished, failed or released.
            WorkerStopping: the worker cannot wait any longer, and gives the job back.
        """
        holding = self._holding
        if holding.is_closed:
            raise refusal(holding, "report progress of")
        self.check()
        by = progress.note(holding, done, total, note)
        if by is not None:
            heartbeat.heart.beat_by(by)

    @property
    def state(self) -> dict[str, Any] | None:
        """What ``save_state()`` has saved, in this attempt or an earlier one; ``None`` if nothing.
        Each time, it is read over this thread's connection.
        """
        return checkpoint.read(self._holding)

    def save_state(self, state: dict[str, Any] | None) -> None:
        """Save a checkpoint, which the next attempt finds in ``state``. It replaces the last one,
        and is deleted when the job is finished. Inside ``transaction.atomic()``, it is committed
        together with the work's own writes.

        Args:
            state: JSON of at most 64 kB.

        Raises:
            BadState: it is not a dict, not JSON, or too large; nothing was written.
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released.
        """
        checkpoint.save(self._holding, state)

    def finish(self, result: Any = None) -> None:
        """Mark the job as done. Inside ``transaction.atomic()``, this is committed together with
        the work's own writes, or not at all.

        Args:
            result: JSON of at most 2 MB, for a table with a ``JSONField`` named ``result``.
                ``None`` leaves the field as it is.

        Raises:
            BadResult: the result is not JSON, too large, or has no column; nothing was written.
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        holding = self._holding
        if result is not None:
            outcome.note_result(holding, result)
        end(holding, "finish", {"result": holding.result})
        if result is not None:
            # The instance may be saved afterwards.
            holding.job.result = result

    def fail(
        self,
        code_or_exception: str | BaseException,
        reason: str | None = None,
        *,
        retry: bool = True,
        delay_sec: float | None = None,
    ) -> bool:
        """End this attempt as failed. The job goes back to the queue with the stage's backoff while
        attempts are left. Otherwise, or with ``retry=False``, it fails permanently. Return whether
        it went back.

        An exception gives its class as ``fail_code`` and its message as ``fail_reason``,
        of a database error only the first line, because the others quote rows. Its class path and
        traceback, without local variables, are in the event's details.
        ``delay_sec`` replaces the backoff. An invalid delay counts as 0 and one of more than a year
        as a year, because after an error here, the job would have to wait for its lease to run out.

        Raises:
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        code, why = failure(code_or_exception, reason)
        event = end(
            self._holding,
            "fail",
            {
                "fail_code": code,
                "fail_reason": why,
                **outcome.account(code_or_exception),
                "retry": retry,
                "delay_sec": None if delay_sec is None else _at_most_a_year(delay_sec),
                "policies": conf.settings().policies_json,
            },
        )
        return bool(event["type"] == EventType.JOB_RETRIED)

    def release(self) -> None:
        """Give the job back, as on shutdown: it is due at once, and the attempt is not counted.

        Raises:
            LeaseLost: the lease is lost; nothing was written.
            LeaseClosed: it was finished, failed or released before.
        """
        end(self._holding, "release", {})

    # For coroutines. Each does what the method without the "a" does, and raises the same. If the
    # task is cancelled meanwhile, it waits for the answer before it raises ``CancelledError``.

    async def aheartbeat(self) -> None:
        """``heartbeat()`` for coroutines."""
        await to_its_end(self.heartbeat)

    async def astate(self) -> dict[str, Any] | None:
        """``state`` for coroutines."""
        return await to_its_end(lambda: self.state)

    async def asave_state(self, state: dict[str, Any] | None) -> None:
        """``save_state()`` for coroutines."""
        await to_its_end(lambda: self.save_state(state))

    async def afinish(self, result: Any = None) -> None:
        """``finish()`` for coroutines."""
        await to_its_end(lambda: self.finish(result))

    async def afail(
        self,
        code_or_exception: str | BaseException,
        reason: str | None = None,
        *,
        retry: bool = True,
        delay_sec: float | None = None,
    ) -> bool:
        """``fail()`` for coroutines."""
        return await to_its_end(
            lambda: self.fail(code_or_exception, reason, retry=retry, delay_sec=delay_sec)
        )

    async def arelease(self) -> None:
        """``release()`` for coroutines."""
        await to_its_end(self.release)


def _at_most_a_year(given: Any) -> float:
    try:
        sec = float(given.total_seconds() if isinstance(given, timedelta) else given)
    except (TypeError, ValueError, OverflowError):
        sec = 0.0
    # In this order NaN is 0.
    return max(0.0, min(sec, LONGEST_MS / 1000))
