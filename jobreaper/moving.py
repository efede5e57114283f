"""Moving from another queue: its jobs become jobs of the ready-made queue, and back.

The other queue's rows are locked, the jobs are created, and the rows are marked, in one
transaction. So no job is in both queues or in neither, whatever dies on the way, and whichever
workers run meanwhile. ``docs/moving.md`` says in which order a deployment does this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final, cast
from uuid import UUID, uuid5

from django.db import DatabaseError, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobreaper import conf, sql
from jobreaper.control.by_hand import cancel_queued
from jobreaper.db import LONGEST_TEXT, fetch, in_words, may_be_a_rows_fault, storable
from jobreaper.exceptions import BadPayload
from jobreaper.models import Job
from jobreaper.queue.dedupe import check_payload
from jobreaper.queue.enqueueing import announce
from jobreaper.queue.new_jobs import checked_job
from jobreaper.states import DEFAULT_QUEUE, Dedupe, Status
from jobreaper.tables import statements, table_of

# The other queue's workers wait for no more rows than these, and not for long.
ROWS_A_TRANSACTION: Final = 500

# A job as its statement takes it.
Row = dict[str, Any]

_NAMESPACE: Final = UUID("6f1c0f0c-5d4e-4f7e-9d52-0d6a3c2b7a10")
_ENDED: Final = (Status.SUCCESS, Status.FAILED, Status.CANCELLED)
_EXISTS: Final = "there is already a job with its id, or an unfinished one with its dedupe key"


@dataclass(frozen=True, kw_only=True)
class OldJob:
    """A job of another queue in the words of this one.

    The arguments up to ``dedupe_key`` are those of ``enqueue()``; a key that a queued or processing
    job has is refused. ``status`` is ``queued`` for a job that is to run, otherwise ``success``,
    ``failed`` or ``cancelled``. ``created_at`` also says which of two queued jobs without
    ``run_at`` comes first; without it, that is the order of their keys.

    Of a job that has ended, ``result`` is what it returned (JSON, or it is left out), ``exception``
    the path of the class of its exception, ``traceback`` the text, ``worker`` who ran it,
    ``attempts`` how often, and ``started_at`` and ``finished_at`` when.

    ``id`` is the job's id, by default ``job_id()`` of the row.
    """

    type: str
    payload: Any = None
    org_id: object = None
    run_at: datetime | None = None
    stage: str | None = None
    max_attempts: int | None = None
    priority: int = 0
    queue: str = DEFAULT_QUEUE
    dedupe_key: str | None = None
    id: UUID | None = None
    created_at: datetime | None = None
    status: str = Status.QUEUED
    attempts: int = 0
    result: Any = None
    exception: str | None = None
    traceback: str | None = None
    worker: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass
class Moved:
    """What was moved: how many, how many were there already or left alone on purpose, and, by the
    keys of the rows that stay where they are, why.
    """

    moved: int = 0
    there: int = 0
    left: int = 0
    refused: dict[Any, str] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = f"{self.moved} moved, {self.there} were there, {self.left} left alone"
        lines = [f"{key} stays: {why}" for key, why in self.refused.items()]
        return "\n".join([f"{numbers}, {len(lines)} refused", *lines])


def job_id(row: models.Model) -> UUID:
    """Return the id of the job that a row of another queue becomes: the row's key if that is a
    UUID, otherwise a UUID made of its table and its key.
    """
    key = row.pk
    return key if isinstance(key, UUID) else uuid5(_NAMESPACE, f"{row._meta.db_table}:{key}")


def carry_over(
    rows: QuerySet[Any],
    describe: Callable[[Any], OldJob | None],
    *,
    mark: Mapping[str, Any] | None = None,
    rows_a_transaction: int = ROWS_A_TRANSACTION,
) -> Moved:
    """Create a job for each of another queue's rows, and mark the rows, so that the other queue's
    workers leave them alone. Return what was moved.

    It may run beside the other queue's workers, several times, and at several places at once: a row
    that somebody has locked, because a worker is claiming it, is left for the next time.

    Args:
        rows: the rows to move, in the database of ``jobreaper.Job``.
        describe: says what the job of a row is; ``None`` leaves the row alone. A row for which it
            raises an exception stays where it is, and so does one whose job is not valid.
        mark: the values that take a row out of ``rows`` and out of the other queue. ``None`` leaves
            the rows as they are, and is only for jobs that have ended: they are copied.
        rows_a_transaction: how many rows are locked at a time.

    Raises:
        ValueError: the rows are in another database; a job that is to run would stay in the other
            queue, because there is no mark or it does not take the row out of ``rows``. The
            transaction is rolled back; those before it stand.
    """
    alias = table_of(Job).alias
    if router.db_for_write(rows.model) != alias or cast("Any", rows)._db not in (None, alias):
        raise ValueError(f"the rows of {rows.model._meta.label} are not in the database {alias!r}")
    result = Moved()

    def move(locked: list[Any]) -> None:
        moved = _create(_described(locked, describe, mark is not None, result), result)
        if mark is None:
            return
        rows.model._base_manager.using(alias).filter(pk__in=moved).update(**mark)
        if still := list(rows.using(alias).filter(pk__in=moved)[:1]):
            raise ValueError(f"{mark} does not take {still[0].pk} out of the rows to move")

    _by_parts(rows.using(alias), rows_a_transaction, move)
    return result


def hand_back(
    enqueue: Callable[[Job], object],
    *,
    by: str,
    jobs: QuerySet[Job] | None = None,
    rows_a_transaction: int = ROWS_A_TRANSACTION,
) -> Moved:
    """Give queued jobs to another queue: call its ``enqueue`` for each and cancel the job, in one
    transaction. Return what was moved.

    Jobs that are processing are not given back; run it again when they are queued or have ended.

    Args:
        enqueue: enqueues a job in the other queue, through the connection of ``jobreaper.Job``, so
            that it commits with the cancelling. A job for which it raises stays where it is.
        by: who does it, for the jobs' events.
        jobs: which jobs; by default, all of the ready-made table.
        rows_a_transaction: how many jobs are locked at a time.
    """
    alias = table_of(Job).alias
    chosen = Job._base_manager.all() if jobs is None else jobs
    result = Moved()

    def give(locked: list[Any]) -> None:
        given = []
        for job in locked:
            try:
                with transaction.atomic(using=alias):
                    enqueue(job)
            except Exception as error:
                result.refused[job.pk] = in_words(error)
            else:
                given.append(job.pk)
        cancelled = cancel_queued(Job, given, by=by, reason="given back to another queue")
        if len(cancelled) != len(given):
            raise RuntimeError("a job cannot be cancelled, so it cannot be given back either")
        result.moved += len(given)

    queued = chosen.using(alias).filter(status=Status.QUEUED)
    _by_parts(queued, rows_a_transaction, give)
    return result


def _by_parts(rows: QuerySet[Any], number: int, move: Callable[[list[Any]], None]) -> None:
    """Call ``move`` with some of the rows at a time, locked, each time in a transaction."""
    after: dict[str, Any] = {}
    while True:
        with transaction.atomic(using=rows.db):
            free = rows.filter(**after).order_by("pk")
            locking = free.select_for_update(skip_locked=True, of=("self",), no_key=True)
            locked = list(locking[:number])
            if not locked:
                return
            move(locked)
        after = {"pk__gt": locked[-1].pk}


def _described(
    rows: list[Any], describe: Callable[[Any], OldJob | None], has_mark: bool, result: Moved
) -> dict[Any, Row]:
    """Return the jobs to create, by the keys of their rows."""
    described: dict[Any, Row] = {}
    for row in rows:
        try:
            old = describe(row)
            if old is not None:
                described[row.pk] = _row_of(row, old)
            else:
                result.left += 1
        except DatabaseError:
            # Its transaction is broken.
            raise
        except Exception as error:
            result.refused[row.pk] = in_words(error)
        else:
            if old is not None and old.status == Status.QUEUED and not has_mark:
                raise ValueError(f"{row.pk} is to run, so its row needs a mark")
    return described


def _row_of(row: models.Model, old: OldJob) -> Row:
    if old.status not in (Status.QUEUED, *_ENDED):
        raise ValueError(f"its status is {old.status!r}, which is not that of a job at rest")
    kind, _, key, _ = checked_job(
        old.type,
        old.payload,
        old.org_id,
        old.run_at,
        old.stage,
        old.max_attempts,
        old.priority,
        None if old.dedupe_key is None else Dedupe.SKIP,
        old.dedupe_key,
        old.queue,
    )
    return {
        **kind._asdict(),
        "id": old.id or job_id(row),
        "payload": {} if old.payload is None else old.payload,
        "dedupe_key": key,
        "status": str(old.status),
        "created_at": old.created_at and old.created_at.isoformat(),
        "result": _storable(old.result),
        "attempts": old.attempts,
        "worker": None if old.worker is None else storable(old.worker),
        "started_at": old.started_at and old.started_at.isoformat(),
        "finished_at": old.finished_at and old.finished_at.isoformat(),
        **(_failure(old) if old.status == Status.FAILED else {}),
        "former_table": row._meta.db_table,
        "former_key": str(row.pk),
    }


def _failure(old: OldJob) -> Row:
    # The end of a traceback says what happened.
    traceback = storable((old.traceback or "")[-LONGEST_TEXT:])
    return {
        "fail_code": storable(old.exception or "carried_over").rpartition(".")[2],
        "fail_reason": traceback.strip().rpartition("\n")[2] or None,
        "exception": None if old.exception is None else storable(old.exception),
        "traceback": traceback or None,
    }


def _storable(result: Any) -> Any:
    """Return a result as it is, or ``None`` if it cannot be stored: the work is done all the
    same.
    """
    try:
        check_payload(result)
    except BadPayload:
        return None
    return result


def _create(described: dict[Any, Row], result: Moved) -> list[Any]:
    """Create the jobs, and return the keys of the rows whose jobs are new. Why the others have none
    is noted, and does not stop them.
    """
    if not described:
        return []
    connection = table_of(Job).connection()
    try:
        with transaction.atomic(using=connection.alias):
            new = _write(connection, list(described.values()))
    except DatabaseError as error:
        if not may_be_a_rows_fault(connection, error):
            raise
        if len(described) > 1:
            return [key for one in described.items() for key in _create(dict([one]), result)]
        result.refused[next(iter(described))] = in_words(error)
        return []
    moved = []
    for key, job in described.items():
        if job["id"] in new:
            moved.append(key)
            # Another row may say that its job has the same id.
            new.remove(job["id"])
        elif job["status"] == Status.QUEUED:
            result.refused[key] = _EXISTS
        else:
            result.there += 1
    result.moved += len(moved)
    if moved:
        announce([described[key]["id"] for key in moved])
    return moved


def _write(connection: BaseDatabaseWrapper, jobs: list[Row]) -> set[UUID]:
    params = {
        "jobs": json.dumps(jobs, default=str, ensure_ascii=False),
        "number": len(jobs),
        "notify": conf.settings().notify,
    }
    return {pk for (pk,) in fetch(connection, carry_over_statement(), params)}


@cache
def carry_over_statement() -> str:
    """Return the statement that creates the jobs."""
    parts = statements.leased_parts(table_of(Job))
    for name in ("event", "notified"):
        parts[name] = sql.compose(f"fragments/{name}", parts)
    return sql.render("statements/carry_over", parts)
