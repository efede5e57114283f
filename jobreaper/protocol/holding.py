"""What this process knows about a lease: its row, its phase, and when it ends.

Users see a ``Lease``. Heartbeats, groups of leases, logs and traces use its ``Holding``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary, ref

from jobreaper import signals
from jobreaper.db import ANY_SESSION, without_details
from jobreaper.exceptions import LeaseLost, WorkerStopping
from jobreaper.identity import local_clock
from jobreaper.protocol.phases import TRANSITIONS, Phase
from jobreaper.states import Status

if TYPE_CHECKING:
    from jobreaper.tables import JobTable


_WHY_LOST: Final = {
    "heartbeat": "it was taken away",
    "superseded": "this worker has claimed the job once more under the same epoch",
    "clock": "its time ran out, and no heartbeat has renewed it",
    "deadline": "the max_runtime of its stage is over",
    "stalled": "it has made no progress for the stall_after of its stage",
}


class Beat(NamedTuple):
    """The result of a heartbeat. ``remaining_sec`` is ``None`` if the row was locked or lost."""

    held: bool
    remaining_sec: float | None
    expires_at: datetime | None
    status: str | None
    epoch: int | None
    # Of a table that tracks progress.
    stalls_at: datetime | None = None


class Holding:
    """The inside of a lease.

    Its phase changes only in ``_go()``, along ``TRANSITIONS``. Its answers are the same in every
    thread.
    """

    __slots__ = (
        "__weakref__",
        "_announcement",
        "_claim_is_visible",
        "_deadline",
        "_lock",
        "_missed",
        "_pending_end",
        "_runs_out_at",
        "alias",
        "attempt",
        "ended_by",
        "epoch",
        "expires_at",
        "has_state",
        "in_batch",
        "is_stopping",
        "is_superseded",
        "job",
        "key",
        "lease",
        "length_sec",
        "loss",
        "on_lost",
        "phase",
        "pk",
        "raised",
        "report",
        "result",
        "session",
        "stage",
        "stalls_at",
        "table",
        "waited_ms",
        "withdrawal",
        "worker",
    )

    def __init__(
        self,
        table: JobTable,
        alias: str,
        job: Any,
        *,
        worker: str,
        key: Any,
        claimed_at: float,
        length_sec: float,
        session: str = ANY_SESSION,
    ) -> None:
        """``key`` is the job's key as a statement's parameter. ``claimed_at`` is when the claim was
        sent, on the local clock. ``session`` is what its session was, from ``db.session_of()``.
        """
        self.table = table
        self.alias = alias
        self.job = job
        self.pk = job.pk
        self.key = key
        self.worker = worker
        self.epoch, self.stage, self.attempt, self.expires_at = table.lease_values(job)
        self.length_sec = length_sec
        self.session = session
        # What users see: the ``lease`` argument of signals.
        self.lease: Any = None
        self.phase = Phase.HELD
        self._lock = threading.RLock()
        self._runs_out_at = claimed_at + length_sec
        self._deadline = self._deadline_on_the_local_clock()
        self._claim_is_visible = False
        # Why heartbeats have failed since the last successful one.
        self._missed: str | None = None
        self.loss: LeaseLost | None = None
        # Whether the database cannot distinguish it from a later lease of this worker.
        self.is_superseded = False
        # A loss that was not announced yet.
        self._announcement: dict[str, Any] | None = None
        self._pending_end: Any = None
        # The verb that has ended it.
        self.ended_by: str | None = None
        # Whether a signal about it is part of a batch.
        self.in_batch = False
        # The exception with which it fails, if that propagates or is logged in any case.
        self.raised: BaseException | None = None
        # What the job's function returned, as JSON, for the statement that finishes the job.
        self.result: str | None = None
        # A report that no heartbeat has carried yet, as JSON; when the job stalls, by the database.
        self.report: str | None = None
        self.stalls_at = table.stalls_at(job)
        # Whether the job may have a state that is deleted when it is finished.
        self.has_state = False
        # How long the job waited for its turn in this process after the claim.
        self.waited_ms = 0.0
        # Called once, in the thread that finds that the lease is lost.
        self.on_lost: Callable[[LeaseLost], None] | None = None
        # Whether the worker wants to stop, where it can say so.
        self.is_stopping: Callable[[], bool] | None = None
        # Why the function must end although the lease stands: the worker gives the job back.
        self.withdrawal: WorkerStopping | None = None

    def _deadline_on_the_local_clock(self) -> float | None:
        deadline = self.table.deadline(self.job)
        if deadline is None or self.expires_at is None:
            return None
        return self._runs_out_at + (deadline - self.expires_at).total_seconds()

    @contextmanager
    def failing_by(self, error: BaseException | None) -> Iterator[None]:
        """Let receivers of a failure in this block see the exception. It is not secret, because it
        propagates or is logged in any case, and a database error does not quote rows any more.
        """
        self.raised = without_details(error)
        try:
            yield
        finally:
            # Its traceback keeps everything in its frames alive.
            self.raised = None

    def __repr__(self) -> str:
        return f"<Lease {self.table.name} {self.pk} epoch {self.epoch}>"

    @property
    def is_closed(self) -> bool:
        """Whether this process has ended it, even in a transaction that is not committed yet."""
        return self.phase in (Phase.CLOSING, Phase.ENDED)

    @property
    def wants_beats(self) -> bool:
        """Whether it needs heartbeats."""
        if self.loss is not None:
            return self._announcement is not None
        return self.phase is not Phase.ENDED

    def _go(self, to: Phase) -> bool:
        """Change the phase if that is allowed, and return whether it is. A change that comes too
        late has no effect.
        """
        with self._lock:
            may = to in TRANSITIONS[self.phase]
            if may:
                self.phase = to
            return may

    def _stand(self) -> None:
        """Return to the phase before a verb that has not ended it."""
        self._go(Phase.HELD if self.loss is None else Phase.LOST)

    # The claim and the verbs

    def claim_committed(self) -> None:
        """Record that other sessions can see the claim."""
        self._claim_is_visible = True

    def take_over(self) -> None:
        """Record that this is the latest lease of its job in this process.

        The database fences by epoch and worker. If it has lost a claim, because of a failover or a
        rollback, it assigns the same epoch again, perhaps to the same worker. Only this method can
        then distinguish the older lease, which is lost.
        """
        place = self.alias, self.session, self.table.name, self.key
        older = _latest.get(place)
        _latest[place] = self
        if older is not None and older.epoch >= self.epoch:
            older.supersede(self.epoch)

    def supersede(self, epoch: int) -> None:
        """Record that this worker has a later lease of the job, under ``epoch``."""
        with self._lock:
            self.is_superseded = True
            if self.loss is None and self.phase is not Phase.ENDED:
                status = self.table.word(Status.PROCESSING)
                self._lose("heartbeat", _WHY_LOST["superseded"], status, epoch)
        self.announce_loss()

    def begin_to_end(self) -> bool:
        """Record that a verb will be sent. Return whether it may be sent."""
        return self._go(Phase.ENDING)

    def not_ended(self) -> None:
        """Record that a verb, whether sent or not, has not ended it."""
        with self._lock:
            if self.phase is Phase.ENDING:
                self._stand()

    def ended(self, verb: str) -> None:
        """Record that ``verb`` has ended it permanently."""
        with self._lock:
            self._pending_end = None
            if self._go(Phase.ENDED):
                self.ended_by = verb

    def ended_if_committed(self, verb: str, hook: Callable[[], object] | None = None) -> None:
        """Record that ``verb`` has ended it in a transaction. If ``hook`` waits for the commit,
        Django drops it when the transaction or savepoint is rolled back, which is how this lease
        finds out.
        """
        with self._lock:
            if self._go(Phase.CLOSING):
                self.ended_by = verb
                self._pending_end = hook and ref(hook, self.end_undone)

    def end_undone(self, _: object = None) -> None:
        """Record that the transaction in which it was ended was rolled back."""
        with self._lock:
            if self.phase is Phase.CLOSING:
                self._pending_end = None
                self.ended_by = None
                self._stand()

    # Heartbeats and the clock

    def beaten(self, beat: Beat, sent_at: float) -> None:
        """Record the result of a heartbeat that was sent at ``sent_at`` (local clock, seconds)."""
        with self._lock:
            self._missed = None
            if beat.held:
                self._renew(beat, sent_at)
                return
            # A verb on its way gets its own answer, and a job that was inserted in the transaction
            # of its claim is not visible yet.
            if self.phase is not Phase.HELD or (beat.epoch is None and not self._claim_is_visible):
                return
            self._lose("heartbeat", _WHY_LOST["heartbeat"], beat.status, beat.epoch)
        self.announce_loss()

    def _renew(self, beat: Beat, sent_at: float) -> None:
        if self.loss is not None:
            return
        if beat.remaining_sec is not None:
            self._runs_out_at = sent_at + beat.remaining_sec
            self.expires_at = beat.expires_at
            self.stalls_at = beat.stalls_at
        elif beat.status in self.table.words[Status.PROCESSING]:
            # Locked by a transaction, and ours according to the database.
            self._runs_out_at = max(self._runs_out_at, sent_at + self.length_sec)

    def missed(self, why: str) -> None:
        """Record that a heartbeat could not be sent. A worker that registered ``on_lost`` is told
        when the lease must have run out; any other worker finds out when it asks.
        """
        self._missed = why
        if self.on_lost is not None:
            self.is_lost()
            self.announce_loss()

    def is_lost(self) -> bool:
        """Return whether it is lost, according to the database or the local clock. Once lost, it
        stays lost.
        """
        with self._lock:
            if self.loss is None and not self.is_closed and local_clock() >= self._runs_out_at:
                self._lose(*self._verdict_of_clock(), None, None)
            return self.loss is not None

    @property
    def hard_end(self) -> float | None:
        """When its ``max_runtime`` is over, on the local clock. Until it is ended, that can be
        later than at the claim, if the row says so.
        """
        if self._deadline is None or self.is_closed:
            return self._deadline
        return max(self._deadline, self._runs_out_at)

    @property
    def _ends_by_stalling(self) -> bool:
        return self.stalls_at is not None and self.expires_at == self.stalls_at

    @property
    def stalls_by(self) -> float | None:
        """When the lease ends on the local clock, if that is when the job counts as stalled."""
        return self._runs_out_at if self._ends_by_stalling else None

    def _verdict_of_clock(self) -> tuple[str, str]:
        # No lease lasts beyond its deadline, so an end at the deadline was known before.
        if self.expires_at == self.table.deadline(self.job):
            return "deadline", _WHY_LOST["deadline"]
        if self._ends_by_stalling:
            return "stalled", _WHY_LOST["stalled"]
        if not self._claim_is_visible:
            return "clock", "its claim was not committed in time, and no heartbeat could renew it"
        if self._missed is not None:
            return "clock", f"its time ran out while heartbeats failed ({self._missed})"
        return "clock", _WHY_LOST["clock"]

    # The loss

    def rejected(self, verb: str, status: str | None, epoch: int | None) -> LeaseLost:
        """Record that the database rejected ``verb``, and return the error to raise."""
        error = self._loss_error(f"{verb} was rejected", status, epoch)
        with self._lock:
            is_new = self.loss is None
            self.loss = self.loss or error
            self.not_ended()
            self._go(Phase.LOST)
        if is_new and self.on_lost is not None:
            self.on_lost(error)
        return error

    def withdraw(self) -> None:
        """Make ``check()`` raise ``WorkerStopping`` from now on. The lease stands until the worker
        gives the job back.
        """
        self.withdrawal = WorkerStopping(
            f"the worker stops and gives back {self.table.name} {self.pk} at epoch {self.epoch}",
            table=self.table.name,
            pk=self.pk,
        )

    def announce_loss(self) -> None:
        """Announce the loss if it was not announced yet. Methods that only answer never
        call this.
        """
        with self._lock:
            told, self._announcement = self._announcement, None
        if told is None or self.loss is None:
            return
        signals.lease_lost.send_robust(self.table.model, lease=self.lease, **told)
        if self.on_lost is not None:
            self.on_lost(self.loss)

    def _lose(self, reason: str, why: str, status: str | None, epoch: int | None) -> None:
        self.loss = self._loss_error(why, status, epoch)
        self._announcement = {"reason": reason, "status": status, "epoch": epoch}
        # A verb that is on its way decides.
        if self.phase is Phase.HELD:
            self._go(Phase.LOST)

    def _loss_error(self, why: str, status: str | None, epoch: int | None) -> LeaseLost:
        now = "" if status is None else f"; the job is now {status} at epoch {epoch}"
        return LeaseLost(
            f"lost the lease of {self.table.name} {self.pk} at epoch {self.epoch}: {why}{now}",
            table=self.table.name,
            pk=self.pk,
            status=status,
            epoch=epoch,
        )


# The latest lease of each job that this process has taken, by database, session, table and key.
_latest: Final[WeakValueDictionary[tuple[str, str, str, Any], Holding]] = WeakValueDictionary()


def holding_of(lease: Any) -> Holding:
    """Return the inside of a ``Lease``."""
    holding: Holding = lease._holding
    return holding
