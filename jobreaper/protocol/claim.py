"""Claim: take the leases of the next due jobs, of one job by its key, or of one job for a block."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from select import select
from typing import Any, Final

from django.db import DatabaseError, Error, models, transaction
from psycopg.pq import TransactionStatus

from jobreaper import conf, signals, sql, values
from jobreaper.db import (
    array_of_texts,
    fetch,
    in_transaction,
    in_words,
    on_commit,
    retrying,
    storable,
    timeouts,
    without_details,
)
from jobreaper.exceptions import JobreaperError, LeaseLost, NotClaimed
from jobreaper.identity import local_clock, worker_id
from jobreaper.protocol import around, heartbeat, lines
from jobreaper.protocol.ending import Fence
from jobreaper.protocol.holding import Holding, holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.rows import instances
from jobreaper.states import DEFAULT_QUEUE
from jobreaper.tables import JobTable, table_of

logger = logging.getLogger("jobreaper.claims")

# A claim's mark, in microseconds: large enough that two claims of a worker within seconds differ,
# and small enough that a lease does not look old.
MARKS: Final = 100_000
_claims = count(random.randrange(MARKS))
# The server's clock may run a little faster than the local one.
SINCE_MARGIN_SEC: Final = 0.5

# How long a claim waits for other claims of limited stages; each takes milliseconds.
LOCK_TIMEOUT_SEC: Final = 5.0


def claim(model: type[models.Model], pk: object, *, worker: str | None = None) -> Lease | None:
    """Take the lease of one job. Return ``None`` if the job cannot be claimed: it is not queued,
    not due, locked by another transaction, or does not exist.

    If the model raises an exception while the instance is created, for example because a field
    cannot be decrypted, the attempt fails and the exception is raised.

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError, ValidationError: ``pk`` cannot be a key of it.
    """
    table = table_of(model)
    key = table.prepare_pk(pk)
    leases = _announced(take(table, worker, {"id": key, "n": 1, "stages": None}))
    return leases[0] if leases else None


def claim_next(
    model: type[models.Model],
    n: int = 1,
    *,
    worker: str | None = None,
    stages: Iterable[str] | None = None,
    queues: Iterable[str] | None = None,
) -> list[Lease]:
    """Take the leases of at most ``n`` due jobs in one statement; if ``stages`` or ``queues`` are
    given, only of these. The jobs of a table without a field ``queue`` are in ``"default"``.

    Order: priority if the table has one, then due time, then id. Jobs that never had a due time
    come after those whose time has passed.

    If the model cannot create a job's instance, its attempt fails and the job is left out.

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError: ``n`` is less than 1.
        TypeError: ``stages`` or ``queues`` is a text.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    wanted = {
        "stages": None if stages is None else values.several(stages, "stages"),
        "queues": None if queues is None else values.several(queues, "queues"),
    }
    return _announced(take(table_of(model), worker, {"id": None, "n": n, **wanted}))


def _announced(leases: list[Lease]) -> list[Lease]:
    try:
        if leases:
            # All are of one claim.
            first = holding_of(leases[0])
            connection, model = first.table.connection(first.alias), first.table.model
            on_commit(connection, partial(_announce, model, tuple(leases)))
    # A time limit, or a receiver that exits.
    except BaseException as error:
        for lease in leases:
            _end_by(lease, error)
        raise
    return leases


def _announce(model: type[models.Model], leases: Sequence[Lease]) -> None:
    for lease in leases:
        signals.job_claimed.send_robust(model, lease=lease)


def _end_by(lease: Lease, error: BaseException) -> None:
    """End a lease with an exception that is raised anyway. If this write fails too, the lease runs
    out and the reaper does the rest.
    """
    with suppress(LeaseLost, Error), holding_of(lease).failing_by(error):
        if not (lease.closed or lease.lost):
            lease.fail(error) if isinstance(error, Exception) else lease.release()


def take(table: JobTable, worker: str | None, params: Mapping[str, Any]) -> list[Lease]:
    """Send a claim and return the leases that it took. The caller has to announce them.

    ``params`` are ``id``, ``n``, ``stages``, and what of ``types`` and ``queues`` is wanted.

    If a job's instance cannot be created, its attempt fails with the error, and the other jobs are
    not affected. If the job was claimed by its ``id``, the error is raised.
    """
    if heartbeat.heart.obstacle(table.alias) is not None:
        # A job that nothing renews would run twice. If the database is down, that is the error.
        connection, reach = table.connection(), sql.render("statements/reach")
        retrying(connection, lambda _: fetch(connection, reach, {}))
        return []
    queues = params.get("queues")
    if queues is not None and "queue" not in table.extras and DEFAULT_QUEUE not in queues:
        return []
    claim = _Claim(table, worker, params)
    try:
        return _take(claim, raises=claim.is_for_one)
    except DatabaseError as error:
        if not around.is_about_rows(table, error):
            raise
        return _around(table, worker, params, error)


def _take(claim: _Claim, *, raises: bool = False) -> list[Lease]:
    """Send a claim. With ``raises``, raise the error of an instance that cannot be created."""
    try:
        leases = retrying(claim.connection, claim.send)
    except (Error, JobreaperError):
        raise
    # A time limit or a signal. The server does not know about it and continues.
    except BaseException as broke_off:
        for lease in claim.taken_in_vain():
            _end_by(lease, broke_off)
        raise
    for lease, error in claim.unmade:
        name = claim.table.name
        logger.error(
            "cannot make an instance of %s %s", name, lease.pk, exc_info=without_details(error)
        )
        try:
            lease.fail(error)
        except (LeaseLost, Error) as unwritten:
            logger.error("its attempt was not failed: %s", in_words(unwritten))
        if raises:
            raise error
    return leases


def _around(
    table: JobTable, worker: str | None, params: Mapping[str, Any], error: DatabaseError
) -> list[Lease]:
    """Take the jobs that can be taken, one by one, for at most a few seconds.

    Raises:
        django.db.Error: the reason is not a row, or it is the row of the only requested job.
    """
    if params["id"] is not None:
        around.remember(table, {params["id"]: in_words(error)})
        raise error

    def send(key: Any, n: int = 1) -> list[Lease]:
        return _take(_Claim(table, worker, {**params, "id": key, "n": n}))

    # If the table refuses even this, the reason is the table itself.
    send(None, 0)
    taken: list[Lease] = []
    candidates = _Claim(table, worker, params).candidates
    try:
        around.take_one_by_one(table, params["n"], candidates=candidates, take=send, into=taken)
    except BaseException as broke_off:
        if not (isinstance(broke_off, Error) and taken):
            for lease in taken:
                _end_by(lease, broke_off)
            raise
    return taken


class _Claim:
    """The claim of one call, sent once or, after transient errors, several times."""

    def __init__(self, table: JobTable, worker: str | None, params: Mapping[str, Any]) -> None:
        self.table = table
        self.alias = table.alias
        self.connection = table.connection()
        self.worker = storable(worker or worker_id())
        settings = conf.settings()
        self.is_for_one = params["id"] is not None
        self._statement = "claim" if params["id"] is None else "claim_one"
        self._in_turn = settings.limits_any_of(params["stages"])
        self._params = {
            "types": None,
            "queues": None,
            **params,
            "worker": self.worker,
            "policies": settings.policies_json,
            "policy_by_stage": settings.policy_by_stage_json,
            "limits": settings.limits_json,
            "mark_us": next(_claims) % MARKS + 1,
            "session_settings": array_of_texts(settings.session_settings),
        }
        self._first_sent_at = local_clock()
        self._prepare = table.pk.get_db_prep_value
        # Leases of jobs whose instances could not be created.
        self.unmade: list[tuple[Lease, Exception]] = []
        # Whether the last look along the line ended before it found enough.
        self._is_cut = False

    def send(self, tried_before: bool) -> list[Lease]:
        """Claim, or take over what an earlier try has claimed whose answer was lost."""
        self.unmade = []
        if tried_before:
            taken = self._retaken()
            if taken or self.unmade:
                return taken
        if not self._in_turn:
            return self._next()
        lock = {
            "table": self.table.name,
            "nested": in_transaction(self.connection),
            "timeout": f"{LOCK_TIMEOUT_SEC * 1000:.0f}ms",
        }
        with transaction.atomic(using=self.connection.alias):
            fetch(self.connection, sql.render("statements/lock_claims"), lock)
            return self._next(limited=True)

    def _next(self, limited: bool = False) -> list[Lease]:
        """Claim, by kind if the line is known to be long or turns out to be."""
        taken: list[Lease] = []
        if self.is_for_one or not lines.is_long(self.table):
            self._is_cut = False
            taken = self._leases(self._statement, self._params, limited)
            if not self._is_cut:
                return taken
            lines.note_long(self.table)
        rest = {**self._params, "n": self._params["n"] - len(taken) - len(self.unmade)}
        return taken + self._leases("claim_by_kind", rest, limited)

    @property
    def candidates(self) -> tuple[str, Mapping[str, Any]]:
        """The statement for the keys of the jobs that would be taken, and its parameters."""
        table, name = self.table, "claim_candidates"
        statement = table.limited_statement(name) if self._in_turn else table.statement(name)
        return statement, self._params

    def taken_in_vain(self) -> list[Lease]:
        """Return what the server claimed anyway although an exception interrupted the claim. In a
        transaction of the caller, that is rolled back with it.
        """
        connection = self.connection
        if in_transaction(connection):
            return []
        try:
            raw = connection.connection
            if raw is not None and raw.info.transaction_status == TransactionStatus.ACTIVE:
                raw.cancel_safe(timeout=LOCK_TIMEOUT_SEC)
                # The answer arrives when the claim is committed or rolled back.
                select([raw], [], [], LOCK_TIMEOUT_SEC)
            connection.close()
            self.unmade = []
            with timeouts(connection, lock_sec=LOCK_TIMEOUT_SEC, statement_sec=LOCK_TIMEOUT_SEC):
                taken = self._retaken()
        except Exception as error:
            logger.error(
                "jobs of %s may wait for their leases: %s", self.table.name, in_words(error)
            )
            return []
        return taken + [lease for lease, _ in self.unmade]

    def _retaken(self) -> list[Lease]:
        since_sec = local_clock() - self._first_sent_at + SINCE_MARGIN_SEC
        return self._leases("retake", {**self._params, "since_sec": since_sec})

    def _leases(self, name: str, params: Mapping[str, Any], limited: bool = False) -> list[Lease]:
        table = self.table
        statement = table.limited_statement(name) if limited else table.statement(name)
        sent_at = local_clock()

        def unmade(job: Any, others: tuple[Any, ...], error: Exception) -> None:
            self.unmade.append((self._lease(job, sent_at, *others), error))

        def without_job(others: tuple[Any, ...]) -> None:
            self._is_cut = others[-1]

        found = instances(self.connection, table.model, statement, params, unmade, without_job)
        leases = [self._lease(job, sent_at, *others) for job, others in found]
        claimed = [holding_of(lease) for lease in leases]
        claimed += [holding_of(lease) for lease, _ in self.unmade]
        on_commit(self.connection, partial(_note_committed, claimed))
        return leases

    def _lease(
        self, job: Any, sent_at: float, length: float, session: str, is_cut: bool = False
    ) -> Lease:
        self._is_cut = is_cut
        holding = Holding(
            self.table,
            self.alias,
            job,
            worker=self.worker,
            key=self._prepare(job.pk, self.connection),
            claimed_at=sent_at,
            length_sec=length,
            session=session,
        )
        job._lease = Fence(holding)  # see LeasedJob.save
        lease = Lease(holding)
        holding.take_over()
        return lease


def _note_committed(claimed: Sequence[Holding]) -> None:
    for holding in claimed:
        holding.claim_committed()


@contextmanager
def hold(model: type[models.Model], pk: object, *, worker: str | None = None) -> Iterator[Lease]:
    """Claim a job, send heartbeats while the block runs, and finish the job.

    After an exception, the attempt fails with the exception's class and message. After
    ``SystemExit``, ``KeyboardInterrupt`` and similar exceptions, the job is released. In both cases
    the exception propagates. If the block has ended the lease itself, nothing more is done.

    Raises:
        NotClaimed: the job cannot be claimed.
        LeaseLost: the block succeeded, but the lease was lost before it was finished.
    """
    lease = claim(model, pk, worker=worker)
    if lease is None:
        table = table_of(model)
        why = "it is not queued, not due, locked by another transaction, or does not exist"
        if obstacle := heartbeat.heart.obstacle(table.alias):
            why = f"heartbeats have no connection: {in_words(obstacle)}"
        raise NotClaimed(f"cannot claim {table.name} {pk}: {why}")
    with lease:
        try:
            yield lease
        except BaseException as error:
            _end_by(lease, error)
            raise
        if not lease.closed:
            lease.finish()


def _start_afresh() -> None:
    """Start a forked child's marks elsewhere: it may use its parent's worker id."""
    global _claims
    _claims = count(random.randrange(MARKS))


os.register_at_fork(after_in_child=_start_afresh)
