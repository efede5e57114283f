"""Making jobs of the ready-made table, and ending them by id.

A job is one INSERT, its event and a notification in one statement, in the caller's transaction: it
is there when the caller's own writes are, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.utils import timezone
from psycopg.sql import SQL

from jobreaper import conf, rendering, signals, sql
from jobreaper.db import fetch, on_commit, retrying
from jobreaper.dedupe import check_payload, make_dedupe_key
from jobreaper.exceptions import LeaseLost
from jobreaper.ids import new_id
from jobreaper.leases import Lease
from jobreaper.models import Job
from jobreaper.rows import instances
from jobreaper.states import Dedupe, Status
from jobreaper.tables import table_of
from jobreaper.tracecontext import current_traceparent
from jobreaper.worker import worker_id

# Rows of one statement of enqueue_many: some megabytes on their way, whatever their number.
ROWS_A_STATEMENT: Final = 10_000

SMALLEST_PRIORITY: Final = -(2**15)
LARGEST_PRIORITY: Final = 2**15 - 1
LARGEST_MAX_ATTEMPTS: Final = 2**31 - 1

# The job in the new one's place may end between two tries, and again; not for ever.
MOST_TRIES: Final = 100

_Row = dict[str, Any]


@dataclass
class EnqueueResult:
    """What ``enqueue_many`` did. ``ids`` are those of the jobs made, in the order given."""

    made: int = 0
    replaced: int = 0
    skipped: int = 0
    ids: list[UUID] = field(default_factory=list)


def enqueue(
    type: str,
    payload: Any = None,
    org_id: object = None,
    run_at: datetime | None = None,
    stage: str | None = None,
    max_attempts: int | None = None,
    priority: int = 0,
    dedupe: str | None = None,
    dedupe_key: str | None = None,
) -> Job:
    """Make a job, as part of the caller's transaction, and return it.

    Args:
        type: what to do; the handler is looked up by it.
        payload: JSON for the handler, ``{}`` by default.
        org_id: whose job it is, for metering and the dedupe key.
        run_at: not before this time; a naive one is in the current time zone.
        stage: picks the policy; the type by default.
        max_attempts: ``JOB_MAX_ATTEMPTS`` by default.
        priority: jobs of a higher priority are claimed first.
        dedupe: what to do where a queued or processing job has the same key. ``None``: the new job
            has no key and is never merged. ``"skip"``: that job is returned. ``"replace"``: a
            queued one gets this payload, priority and time, and is returned; one that is running is
            returned as it is.
        dedupe_key: the key, in place of ``make_dedupe_key(type, org_id, payload)``.

    Raises:
        BadPayload: the payload is not JSON, or has text that cannot be stored.
        ValueError: another argument is bad, such as a time beyond the year 9999 in UTC. Either way
            nothing was written.
    """
    row = _row(type, payload, org_id, run_at, stage, max_attempts, priority, dedupe, dedupe_key)
    connection = table_of(Job).connection()
    statement = _statement("enqueue", dedupe == Dedupe.REPLACE)
    params = _params([row])
    may_be_made = False

    def send(answer_was_lost: bool) -> list[tuple[Job, tuple[Any, ...]]]:
        nonlocal may_be_made
        may_be_made |= answer_was_lost
        if may_be_made and (own := _made_before(connection, [row]).first()):
            return [(own, (True,))]
        return instances(connection, Job, statement, params)

    for _ in range(MOST_TRIES):
        for job, (is_new,) in retrying(connection, send)[:1]:
            if is_new is not None:
                _announce([job.pk])
                return job
            if dedupe != Dedupe.REPLACE:
                return job
            # It could not be replaced since it was claimed; the statement had looked before that.
            live = Job._base_manager.using(connection.alias).filter(
                pk=job.pk, status__in=[Status.QUEUED, Status.PROCESSING]
            )
            if running := live.first():
                return running
    raise RuntimeError(f"jobs with the key {row['dedupe_key']!r} end faster than they can be seen")


def enqueue_many(jobs: Iterable[Mapping[str, Any]], **common: Any) -> EnqueueResult:
    """Make thousands of jobs with one statement, all or none of them, and count them.

    Each of ``jobs`` has ``enqueue()``'s arguments by name; ``common`` are those that all share::

        enqueue_many(({"payload": {"to": to}} for to in addresses), type="mail", dedupe="skip")

    More than one statement holds, or with ``"replace"`` for only some of them, they are several in
    one transaction. Where several have the same key, the first counts with ``"skip"`` and the last
    with ``"replace"``.

    Raises:
        BadPayload, ValueError, TypeError: one of the jobs is bad; nothing was written.
    """
    result = EnqueueResult()
    connection = table_of(Job).connection()
    rows = (
        (_row(**{**common, **job}), {**common, **job}.get("dedupe") == Dedupe.REPLACE)
        for job in jobs
    )
    batches = _batches(rows)
    first, second = next(batches, []), next(batches, [])
    if not second:
        _enqueue_batch(connection, first, result)
        return result
    with transaction.atomic(using=connection.alias):
        for batch in (first, second, *batches):
            _enqueue_batch(connection, batch, result)
    return result


def mark_success(id: object, *, epoch: int | None = None) -> None:
    """Mark a running job as done, for callers that have its id and no ``Lease``.

    ``epoch`` is the lease's, such as the caller's claim returned it: with it the write is fenced
    as ``Lease.finish()`` is. Without it, whoever is running the job now is taken for the caller:
    after a reap that may be another worker.

    Raises:
        LeaseLost: the job is not running, or not under ``epoch``; nothing was written.
    """
    _lease(id, epoch).finish()


def mark_failure(id: object, error: str | BaseException, *, epoch: int | None = None) -> bool:
    """End a running job's attempt as failed, as ``Lease.fail()`` does, and return whether it went
    back to the queue. See ``mark_success`` for ``epoch``.

    Raises:
        LeaseLost: the job is not running, or not under ``epoch``; nothing was written.
    """
    lease = _lease(id, epoch)
    return lease.fail(error) if isinstance(error, BaseException) else lease.fail("error", error)


def _lease(id: object, epoch: int | None) -> Lease:
    """Return the lease under which a job runs, or ran under ``epoch``."""
    table = table_of(Job)
    key = table.prepare_pk(id)
    job = Job._base_manager.using(table.alias).filter(pk=key).first()
    if job is None:
        raise LeaseLost(f"there is no job {id}", table=table.name, pk=id)
    if epoch is not None:
        job.lease_epoch = epoch
    forever = float("inf")
    return Lease(table, table.alias, job, job.locked_by or worker_id(), forever, forever)


def _row(
    type: str,
    payload: Any = None,
    org_id: object = None,
    run_at: datetime | None = None,
    stage: str | None = None,
    max_attempts: int | None = None,
    priority: int = 0,
    dedupe: str | None = None,
    dedupe_key: str | None = None,
) -> _Row:
    """Return a new job as a row of the statement's JSON, checked."""
    payload = {} if payload is None else payload
    check_payload(payload)
    org_id = None if org_id in (None, "") else str(org_id)
    key = None
    if dedupe is not None:
        if dedupe not in list(Dedupe):
            words = ", ".join(repr(word.value) for word in Dedupe)
            raise ValueError(f"dedupe must be None, {words}, not {dedupe!r}")
        key = make_dedupe_key(type, org_id, payload) if dedupe_key is None else dedupe_key
    for name, text in (("type", type), ("stage", stage), ("org_id", org_id), ("dedupe_key", key)):
        if text is not None or name == "type":
            _check_text(name, text)
    if max_attempts is None:
        max_attempts = conf.settings().max_attempts
    _check_number("max_attempts", max_attempts, 1, LARGEST_MAX_ATTEMPTS)
    _check_number("priority", priority, SMALLEST_PRIORITY, LARGEST_PRIORITY)
    return {
        "id": new_id(),
        "type": type,
        "stage": type if stage is None else stage,
        "org_id": org_id,
        "payload": payload,
        "priority": priority,
        "max_attempts": max_attempts,
        "run_at": None if run_at is None else _in_utc(run_at).isoformat(),
        "dedupe_key": key,
    }


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text, and not empty: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half a surrogate pair: {value!r}") from None
    if "\x00" in value:
        raise ValueError(f"{name} has a NUL character: {value!r}")


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def _in_utc(moment: object) -> datetime:
    if not isinstance(moment, datetime):
        raise ValueError(f"run_at must be a datetime, not {moment!r}")
    try:
        aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
        # The statement's answer has it in the zone of the connection.
        aware.astimezone(ZoneInfo(table_of(Job).connection().timezone_name))
        return aware.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"run_at is not in the years 1 to 9999 in UTC: {moment!r}") from None


def _batches(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(rows, ROWS_A_STATEMENT)):
        yield batch


def _enqueue_batch(
    connection: BaseDatabaseWrapper, batch: list[tuple[_Row, bool]], result: EnqueueResult
) -> None:
    kept = [row for row, replaces in batch if not replaces]
    # A statement cannot replace the same row twice.
    replacing = {row["dedupe_key"]: row for row, replaces in batch if replaces}
    kinds = [(kept, False), (list(replacing.values()), True)]
    parts = [(rows, replaces) for rows, replaces in kinds if rows]
    # By a try whose answer was lost. They may have been claimed by now, and even have ended.
    made_before: set[UUID] = set()

    def send(answer_was_lost: bool) -> list[set[UUID]]:
        if answer_was_lost:
            rows = [row for row, _ in batch]
            made_before.update(_made_before(connection, rows).values_list("pk", flat=True))
        both_or_none = transaction.atomic(using=connection.alias)
        with both_or_none if len(parts) > 1 else nullcontext():
            return [_write(connection, *part, made_before) for part in parts]

    made: set[UUID] = set()
    for (rows, _), written in zip(parts, retrying(connection, send), strict=True):
        own = {row["id"] for row in rows}
        made |= own & written
        result.replaced += len(written - own)
        result.skipped += len(rows) - len(written)
        if written:
            _announce([row["id"] for row in rows if row["id"] in written] + [*(written - own)])
    result.ids += [row["id"] for row, _ in batch if row["id"] in made]
    result.made += len(made)
    result.skipped += len(batch) - len(kept) - len(replacing)


def _write(
    connection: BaseDatabaseWrapper, rows: list[_Row], replaces: bool, made_before: set[UUID]
) -> set[UUID]:
    """Return the keys of the jobs that are made of these rows, or replaced by them."""
    left = [row for row in rows if row["id"] not in made_before]
    written = fetch(connection, _statement("enqueue_many", replaces), _params(left)) if left else []
    return {row["id"] for row in rows}.intersection(made_before).union(pk for (pk,) in written)


def _made_before(connection: BaseDatabaseWrapper, rows: list[_Row]) -> QuerySet[Job]:
    """Return the jobs that an earlier try has made of these rows."""
    ids = [row["id"] for row in rows]
    return Job._base_manager.using(connection.alias).filter(pk__in=ids)


def _params(rows: list[_Row]) -> dict[str, Any]:
    return {"jobs": json.dumps(rows, default=str), "traceparent": current_traceparent()}


def _announce(pks: list[UUID]) -> None:
    send = partial(signals.jobs_enqueued.send_robust, Job, pks=pks)
    on_commit(table_of(Job).connection(), send)


@cache
def _statement(name: str, replaces: bool) -> str:
    parts = rendering.leased_parts(table_of(Job))
    parts["digest"] = rendering.digest(SQL("dedupe_key"))
    parts["digest_of_job"] = rendering.digest(SQL("job.dedupe_key"))
    on_conflict = "or_replace" if replaces else "or_keep"
    parts["on_conflict"] = sql.compose(f"fragments/{on_conflict}", parts)
    parts["enqueued"] = sql.compose("fragments/enqueued", parts)
    return sql.render(f"statements/{name}", parts)
