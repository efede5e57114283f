"""Creating jobs in the ready-made table, and ending them by id.

One statement inserts the job and its event and sends a notification, in the caller's transaction:
the job is committed together with the caller's own writes, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from psycopg.sql import SQL, Composable

from jobreaper import signals, sql
from jobreaper.db import fetch, on_commit, reading_any_time, retrying
from jobreaper.exceptions import LeaseLost
from jobreaper.identity import worker_id
from jobreaper.models import Job
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.rows import instances
from jobreaper.queue.new_jobs import NewJobs, new_jobs, one_job, params_of
from jobreaper.states import DEFAULT_QUEUE, Dedupe, Status
from jobreaper.tables import statements, table_of

# Rows per statement of enqueue_many: some megabytes at a time, however many rows there are.
ROWS_A_STATEMENT: Final = 10_000

# What their events say; the other columns would be kept in memory for nothing.
RETURNED_OF_MANY: Final = (
    "job.id, job.type, job.stage, job.queue, job.org_id, job.priority, job.next_earliest_run_at"
)

# The job that has the key may end between two tries, and again, but not forever.
MOST_TRIES: Final = 100


@dataclass
class EnqueueResult:
    """The result of ``enqueue_many``. ``ids`` are those of the created jobs, in the given order."""

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
    queue: str = DEFAULT_QUEUE,
) -> Job:
    """Create a job as part of the caller's transaction, and return it.

    Args:
        type: selects the handler.
        payload: JSON for the handler, ``{}`` by default.
        org_id: whose job it is, for metering and the dedupe key.
        run_at: the job is due at this time; a naive time is in the current time zone.
        stage: selects the policy; the type by default.
        max_attempts: ``JOB_MAX_ATTEMPTS`` by default.
        priority: jobs of a higher priority are claimed first.
        dedupe: what to do if a queued or processing job has the same key. ``None``: the new job has
            no key and is always created. ``"skip"``: that job is returned. ``"replace"``: it is
            returned too; if it is queued, it gets this payload, priority and time.
        dedupe_key: the key; by default ``make_dedupe_key(type, org_id, payload)``.
        queue: which workers run it, see ``manage.py work --queue``.

    Raises:
        BadPayload: the payload is not JSON, or contains text that cannot be stored.
        ValueError: another argument is invalid. In both cases nothing was written.
    """
    row = one_job(
        type, payload, org_id, run_at, stage, max_attempts, priority, dedupe, dedupe_key, queue
    )
    connection, statement = table_of(Job).connection(), _statement("enqueue", dedupe)
    may_be_made = False

    def send(answer_was_lost: bool) -> list[tuple[Job, tuple[Any, ...]]]:
        nonlocal may_be_made
        may_be_made |= answer_was_lost
        if may_be_made and (own := _made_before(connection, row).first()):
            return [(own, (True,))]
        return instances(connection, Job, statement, params_of(row))

    for _ in range(MOST_TRIES):
        for job, (is_new,) in retrying(connection, send)[:1]:
            if is_new is not None:
                announce([job.pk])
                return job
            if dedupe != Dedupe.REPLACE:
                return job
            # It could not be replaced because it was claimed after the statement had read it.
            rows = Job._base_manager.using(connection.alias).filter(pk=job.pk)
            if running := rows.filter(status__in=[Status.QUEUED, Status.PROCESSING]).first():
                return running
    raise RuntimeError(_why_none(row))


def _why_none(row: NewJobs) -> str:
    """Return why no job was created, nor one found that has the key."""
    suppressed = "a trigger or a rule suppresses the INSERT"
    [kind], [key] = row.kinds, row.dedupe_keys
    if key is None:
        return f"no job of the type {kind.type!r} was created: {suppressed}"
    return f"jobs with the key {key!r} end faster than they can be seen, or {suppressed}"


def enqueue_many(
    jobs: Iterable[Mapping[str, Any]],
    *,
    progress: Callable[[int], object] | None = None,
    **common: Any,
) -> EnqueueResult:
    """Create thousands of jobs with one statement, either all or none, and count them.

    Each of ``jobs`` has arguments of ``enqueue()`` by name; ``common`` are the arguments that all
    share::

        enqueue_many(({"payload": {"to": to}} for to in addresses), type="mail", dedupe="skip")

    If one statement is not enough, or only some of the jobs have ``"replace"``, several statements
    are sent in one transaction. ``progress``, if given, is called after each with the number of
    jobs so far, of which only their keys are still in memory. If several jobs have the same key,
    the first one counts with ``"skip"`` and the last one with ``"replace"``.

    Raises:
        BadPayload, ValueError, TypeError: one of the jobs is invalid; nothing was written.
    """
    result = EnqueueResult()
    connection = table_of(Job).connection()
    batches = _batches({**common, **job} for job in jobs)
    first_two = list(islice(batches, 2))
    taken = 0
    together = transaction.atomic(using=connection.alias) if first_two[1:] else nullcontext()
    with together:
        for batch in chain(first_two, batches):
            _enqueue_batch(connection, batch, result)
            taken += len(batch.ids)
            if progress is not None:
                progress(taken)
    return result


def _batches(given: Iterator[dict[str, Any]]) -> Iterator[NewJobs]:
    """Yield the jobs of each statement. A batch is read only when the one before it was sent, and
    each payload is encoded at once: what yields them may send queries, and use a payload again.
    """
    while (batch := new_jobs(islice(given, ROWS_A_STATEMENT))).ids:
        yield batch


def mark_success(id: object, *, epoch: int | None = None) -> None:
    """Mark a running job as done, for callers that have its id but no ``Lease``.

    ``epoch`` is that of the lease, as the caller's claim returned it. With it, the write is fenced
    as ``Lease.finish()`` is. Without it, the caller is assumed to be the worker that is running the
    job now, which after a reap may be another one.

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
    """Return the lease of a running job, or of the run under ``epoch``."""
    table = table_of(Job)
    key = table.prepare_pk(id)
    with reading_any_time(table.connection()):
        job = Job._base_manager.using(table.alias).filter(pk=key).first()
    if job is None:
        raise LeaseLost(f"there is no job {id}", table=table.name, pk=id)
    if epoch is not None:
        job.lease_epoch = epoch
    holding = Holding(
        table,
        table.alias,
        job,
        worker=job.locked_by or worker_id(),
        key=key,
        claimed_at=0.0,
        length_sec=float("inf"),
    )
    return Lease(holding)


def _enqueue_batch(connection: BaseDatabaseWrapper, batch: NewJobs, result: EnqueueResult) -> None:
    parts = _parts(batch)
    # By a try whose answer was lost. These jobs may have been claimed since, or may even have
    # ended.
    made_before: set[UUID] = set()

    def send(answer_was_lost: bool) -> list[_Written]:
        if answer_was_lost:
            made_before.update(_made_before(connection, batch).values_list("pk", flat=True))
        both_or_none = transaction.atomic(using=connection.alias)
        with both_or_none if len(parts) > 1 else nullcontext():
            return [_write(connection, *part, made_before) for part in parts]

    all_written = retrying(connection, send)
    result.skipped += len(batch.ids)
    for made, replaced in all_written:
        result.made += len(made)
        result.replaced += len(replaced)
        result.skipped -= len(made) + len(replaced)
        if made or replaced:
            announce(made + replaced)
    if len(all_written) == 1:
        result.ids += all_written[0].made
    else:
        own = {pk for written in all_written for pk in written.made}
        result.ids += [pk for pk in batch.ids if pk in own]


def _parts(batch: NewJobs) -> list[tuple[NewJobs, Dedupe | None]]:
    """Return the jobs of each statement that a batch needs, and what that does with their keys."""
    kept = batch
    if batch.replacing:
        kept = batch.at(sorted({*range(len(batch.ids))}.difference(batch.replacing)))
    keyed = kept.dedupe_keys.count(None) < len(kept.dedupe_keys)
    # A statement cannot replace the same row twice.
    last = {batch.dedupe_keys[n]: n for n in batch.replacing}
    replacing = batch.at(last.values())
    kinds = [(kept, Dedupe.SKIP if keyed else None), (replacing, Dedupe.REPLACE)]
    return [(jobs, dedupe) for jobs, dedupe in kinds if jobs.ids]


class _Written(NamedTuple):
    """The keys of the jobs that were created from some rows, in their order, and of the others that
    were replaced by them.
    """

    made: list[UUID]
    replaced: list[UUID]


def _write(
    connection: BaseDatabaseWrapper,
    jobs: NewJobs,
    dedupe: Dedupe | None,
    made_before: set[UUID],
) -> _Written:
    keys, left = jobs.ids, jobs
    if made_before:
        left = jobs.at([n for n, pk in enumerate(keys) if pk not in made_before])
    statement = _statement("enqueue_many", dedupe)
    written = fetch(connection, statement, params_of(left)) if left.ids else []
    if dedupe is None:
        if written == [(len(left.ids),)]:
            return _Written(keys, [])
        # A trigger has kept some of them out.
        own = set(_made_before(connection, jobs).values_list("pk", flat=True))
        return _Written([pk for pk in keys if pk in own], [])
    own = made_before.union(pk for (pk,) in written)
    made = [pk for pk in keys if pk in own]
    return _Written(made, [*own.difference(keys, made_before)])


def _made_before(connection: BaseDatabaseWrapper, jobs: NewJobs) -> QuerySet[Job]:
    """Return those of the jobs that an earlier try has created."""
    return Job._base_manager.using(connection.alias).filter(pk__in=jobs.ids)


def announce(pks: list[UUID]) -> None:
    """Send ``jobs_enqueued`` for new jobs when their transaction commits."""
    send = partial(signals.jobs_enqueued.send_robust, Job, pks=pks)
    on_commit(table_of(Job).connection(), send)


@cache
def _statement(name: str, dedupe: str | None) -> str:
    parts: dict[str, Composable | None] = {
        **statements.leased_parts(table_of(Job)),
        "digest": statements.digest(SQL("dedupe_key")),
        "digest_of_job": statements.digest(SQL("job.dedupe_key")),
        "by_key": SQL('dedupe_key COLLATE "C", '),
        "written": SQL("made.id"),
        "returned": SQL("job.*" if name == "enqueue" else RETURNED_OF_MANY),
    }
    conflict = "or_replace" if dedupe == Dedupe.REPLACE else "or_skip"
    parts["on_conflict"] = sql.compose(f"fragments/{conflict}", parts)
    parts["or_existing"] = sql.compose("fragments/or_existing", parts)
    if dedupe is None:
        parts |= {"by_key": SQL(""), "on_conflict": None, "or_existing": None}
        parts["written"] = SQL("count(made.id)")
    parts["notified"] = sql.compose("fragments/notified", parts)
    parts["enqueued"] = sql.compose("fragments/enqueued", parts)
    return sql.render(f"statements/{name}", parts)
