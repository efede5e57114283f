"""Claim: take the leases of due jobs, of one by its key, or of one for the length of a block."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from select import select
from typing import Any, Final

from django.db import Error, models, transaction

from jobreaper import conf, signals, sql
from jobreaper.db import (
    fetch,
    in_transaction,
    in_words,
    on_commit,
    retrying,
    storable,
    timeouts,
)
from jobreaper.exceptions import JobreaperError, LeaseLost, NotClaimed
from jobreaper.leases import Lease
from jobreaper.rows import instances
from jobreaper.tables import JobTable, table_of
from jobreaper.worker import local_clock, worker_id

logger = logging.getLogger(__name__)

# A claim's mark, in microseconds: too many for two claims of a worker within seconds to have the
# same, and too little for a lease to look old.
MARKS: Final = 100_000
_claims = count(random.randrange(MARKS))
# The server's clock may go a little faster than the local one.
SINCE_MARGIN_SEC: Final = 0.5

# How long a claim waits for others of limited stages; each takes milliseconds.
LOCK_TIMEOUT_SEC: Final = 5.0


def claim(model: type[models.Model], pk: object, *, worker: str | None = None) -> Lease | None:
    """Take the lease of one job, or return ``None`` where that is not to be had: the job is not
    queued, not due, locked by somebody else, or does not exist.

    What the model raises when its instance is made, such as a field that cannot be decrypted, fails
    the attempt and is raised.

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
) -> list[Lease]:
    """Take the leases of at most ``n`` due jobs in one statement, of ``stages`` only where given.

    Order: priority where the table has one, then due time, then id; jobs that never had a time come
    after those whose time has come.

    A job whose instance the model cannot make has its attempt failed, and is left out.

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    wanted = None if stages is None else list(stages)
    return _announced(take(table_of(model), worker, {"id": None, "n": n, "stages": wanted}))


def _announced(leases: list[Lease]) -> list[Lease]:
    try:
        for lease in leases:
            send = partial(signals.job_claimed.send_robust, lease.table.model, lease=lease)
            on_commit(lease.table.connection(lease.alias), send)
    # A time limit, or a receiver that exits.
    except BaseException as error:
        for lease in leases:
            _end_by(lease, error)
        raise
    return leases


def _end_by(lease: Lease, error: BaseException) -> None:
    """End a lease by an exception that is raised anyway. Where this write fails too, the lease runs
    out and the reaper does the rest.
    """
    with suppress(LeaseLost, Error):
        if not (lease.closed or lease.lost):
            lease.fail(error) if isinstance(error, Exception) else lease.release()


def take(table: JobTable, worker: str | None, params: Mapping[str, Any]) -> list[Lease]:
    """Send a claim and return the leases it took; announcing them is left to the caller.

    ``params`` are ``id``, ``n``, ``stages`` and, where the table has types, ``types``.

    A job whose instance cannot be made has its attempt failed with the error, and costs the others
    nothing. Where it was asked for by its ``id``, the error is raised.
    """
    claim = _Claim(table, worker, params)
    try:
        leases = retrying(claim.connection, claim.send)
    except (Error, JobreaperError):
        raise
    # A time limit or a signal. The server knows nothing of it and goes on.
    except BaseException as broke_off:
        for lease in claim.taken_in_vain():
            _end_by(lease, broke_off)
        raise
    for lease, error in claim.unmade:
        logger.error("cannot make an instance of %s %s", table.name, lease.pk, exc_info=error)
        try:
            lease.fail(error)
        except (LeaseLost, Error) as unwritten:
            logger.error("its attempt was not failed: %s", in_words(unwritten))
        if params["id"] is not None:
            raise error
    return leases


class _Claim:
    """One call's claim, sent once or, after an error that passes by itself, several times."""

    def __init__(self, table: JobTable, worker: str | None, params: Mapping[str, Any]) -> None:
        self.table = table
        self.alias = table.alias
        self.connection = table.connection()
        self.worker = storable(worker or worker_id())
        settings = conf.settings()
        self._in_turn = settings.limits_any_of(params["stages"])
        self._params = {
            "types": None,
            **params,
            "worker": self.worker,
            "policies": settings.policies_json,
            "limits": settings.limits_json,
            "mark_us": next(_claims) % MARKS + 1,
        }
        self._first_sent_at = local_clock()
        self._prepare = table.pk.get_db_prep_value
        # Leases of jobs whose instances could not be made.
        self.unmade: list[tuple[Lease, Exception]] = []

    def send(self, tried_before: bool) -> list[Lease]:
        """Claim, unless an earlier try whose answer was lost has: take over what that one took."""
        if tried_before:
            taken = self._retaken()
            if taken or self.unmade:
                return taken
        if not self._in_turn:
            return self._leases("claim", self._params)
        lock = {
            "table": self.table.name,
            "nested": in_transaction(self.connection),
            "timeout": f"{LOCK_TIMEOUT_SEC * 1000:.0f}ms",
        }
        with transaction.atomic(using=self.connection.alias):
            fetch(self.connection, sql.render("statements/lock_claims"), lock)
            return self._leases("claim", self._params, limited=True)

    def taken_in_vain(self) -> list[Lease]:
        """Return what the server has claimed all the same, where an exception broke the claim off;
        in a transaction of the caller's that is undone with it.
        """
        connection = self.connection
        if in_transaction(connection):
            return []
        try:
            if (raw := connection.connection) is not None and not raw.closed:
                raw.cancel_safe(timeout=LOCK_TIMEOUT_SEC)
                # Its answer comes when it is committed or undone.
                select([raw], [], [], LOCK_TIMEOUT_SEC)
            connection.close()
            with timeouts(connection, lock_sec=LOCK_TIMEOUT_SEC, statement_sec=LOCK_TIMEOUT_SEC):
                taken = self._retaken()
        except Exception as error:
            logger.error("jobs of %s may wait for their leases: %s", self.table.name, error)
            return []
        return taken + [lease for lease, _ in self.unmade]

    def _retaken(self) -> list[Lease]:
        since_sec = local_clock() - self._first_sent_at + SINCE_MARGIN_SEC
        return self._leases("retake", {**self._params, "since_sec": since_sec})

    def _leases(self, name: str, params: Mapping[str, Any], limited: bool = False) -> list[Lease]:
        table = self.table
        statement = table.limited_statement(name) if limited else table.statement(name)
        self.unmade = []
        sent_at = local_clock()

        def unmade(job: Any, lengths: tuple[Any, ...], error: Exception) -> None:
            self.unmade.append((self._lease(job, sent_at, *lengths), error))

        found = instances(self.connection, table.model, statement, params, unmade)
        return [self._lease(job, sent_at, length) for job, (length,) in found]

    def _lease(self, job: Any, sent_at: float, length: float) -> Lease:
        key = self._prepare(job.pk, self.connection)
        lease = Lease(self.table, self.alias, job, self.worker, sent_at + length, length, key)
        job._lease = lease  # see LeasedJob.save
        on_commit(self.connection, lease.claim_committed)
        return lease


@contextmanager
def hold(model: type[models.Model], pk: object, *, worker: str | None = None) -> Iterator[Lease]:
    """Claim a job, beat while the block runs, and finish it.

    On an exception the lease fails with the exception's class and message, on ``SystemExit``,
    ``KeyboardInterrupt`` and the like it is released; either way the exception goes on. A block
    that has ended the lease itself is left as it is.

    Raises:
        NotClaimed: the lease is not to be had.
        LeaseLost: the block ended well, and the lease had been lost before it was finished.
    """
    lease = claim(model, pk, worker=worker)
    if lease is None:
        raise NotClaimed(
            f"cannot claim {table_of(model).name} {pk}: it is not queued, not due, locked by "
            "another transaction, or does not exist"
        )
    with lease:
        try:
            yield lease
        except BaseException as error:
            _end_by(lease, error)
            raise
        if not lease.closed:
            lease.finish()


def _start_afresh() -> None:
    """Count a forked child's claims from elsewhere: it may go by its parent's name."""
    global _claims
    _claims = count(random.randrange(MARKS))


os.register_at_fork(after_in_child=_start_afresh)
