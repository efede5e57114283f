"""Claim: take the leases of due jobs, of one by its key, or of one for the length of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from django.db import Error, models, transaction

from jobreaper import conf, signals, sql
from jobreaper.db import fetch, in_transaction, on_commit, retrying, storable
from jobreaper.exceptions import LeaseLost, NotClaimed
from jobreaper.leases import Lease
from jobreaper.rows import instances
from jobreaper.tables import JobTable, table_of
from jobreaper.worker import local_clock, worker_id

# How long a claim waits for others of limited stages; each takes milliseconds.
LOCK_TIMEOUT_SEC: Final = 5.0


def claim(model: type[models.Model], pk: object, *, worker: str | None = None) -> Lease | None:
    """Take the lease of one job, or return ``None`` where that is not to be had: the job is not
    queued, not due, locked by somebody else, or does not exist.

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

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    wanted = None if stages is None else list(stages)
    return _announced(take(table_of(model), worker, {"id": None, "n": n, "stages": wanted}))


def _announced(leases: list[Lease]) -> list[Lease]:
    for lease in leases:
        send = partial(signals.job_claimed.send_robust, lease.table.model, lease=lease)
        on_commit(lease.table.connection(lease.alias), send)
    return leases


def take(table: JobTable, worker: str | None, params: Mapping[str, Any]) -> list[Lease]:
    """Send a claim and return the leases it took; announcing them is left to the caller.

    ``params`` are ``id``, ``n``, ``stages`` and, where the table has types, ``types``.
    """
    settings = conf.settings()
    wanted = params["stages"]
    limited = settings.limited_stages
    if not limited or (wanted is not None and limited.isdisjoint(wanted)):
        return _send_claim(table, table.statement("claim"), worker, params)
    connection = table.connection()
    lock = {
        "table": table.name,
        "nested": in_transaction(connection),
        "timeout": f"{LOCK_TIMEOUT_SEC * 1000:.0f}ms",
    }

    def send(_: bool) -> list[Lease]:
        with transaction.atomic(using=connection.alias):
            fetch(connection, sql.render("statements/lock_claims"), lock)
            given = {**params, "limits": settings.limits_json}
            return _send_claim(table, table.limited_statement("claim"), worker, given)

    return retrying(connection, send)


def _send_claim(
    table: JobTable, statement: str, worker: str | None, params: Mapping[str, Any]
) -> list[Lease]:
    alias = table.alias
    connection = table.connection()
    name = storable(worker or worker_id())
    params = {
        "types": None,
        **params,
        "worker": name,
        "policies": conf.settings().policies_json,
    }

    prepare = table.pk.get_db_prep_value

    def send(_: bool) -> list[Lease]:
        sent_at = local_clock()
        leases = []
        for job, (length,) in instances(connection, table.model, statement, params):
            key = prepare(job.pk, connection)
            lease = Lease(table, alias, job, name, sent_at + length, length, key)
            job._lease = lease  # type: ignore[attr-defined]  # see LeasedJob.save
            on_commit(connection, lease.claim_committed)
            leases.append(lease)
        return leases

    return retrying(connection, send)


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
            # The block's own exception is the one to be seen: where this write fails too, the
            # lease runs out and the reaper does the rest.
            with suppress(LeaseLost, Error):
                if not (lease.closed or lease.lost):
                    lease.fail(error) if isinstance(error, Exception) else lease.release()
            raise
        if not lease.closed:
            lease.finish()
