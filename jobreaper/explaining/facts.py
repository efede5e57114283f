"""What is known about jobs and about what is around them, by the database's clock."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, sql
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.control.pauses import paused
from jobreaper.db import fetch_within
from jobreaper.models import Pause, RefusedRow
from jobreaper.presence import standing
from jobreaper.reaper.results import ReapedJob, jobs_of
from jobreaper.reaper.sending import send
from jobreaper.states import PAUSED_QUEUE_PREFIX, Status, Verb, WorkerKind, WorkerState
from jobreaper.tables import JobTable, statements

# A person or a scrape is waiting.
LOCK_TIMEOUT_SEC: Final = 1.0
STATEMENT_TIMEOUT_SEC: Final = 5.0
MOST_NAMED: Final = 10
# No pass for so many intervals: nothing reaps.
AWAY_AFTER_INTERVALS: Final = 3


class Locked(NamedTuple):
    """The transaction that has locked a job's row. ``pid`` is missing if it is a prepared one."""

    pid: int | None
    user: str | None
    application: str | None
    state: str | None
    query: str | None
    since: str | None
    prepared: str | None


class JobFacts(NamedTuple):
    """A job's row as it is. Parts that its table does not have are ``None``."""

    key: str
    status: str
    stage: str | None
    type: str | None
    queue: str | None
    locked_by: str | None
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    last_heartbeat_at: datetime | None
    deadline_at: datetime | None
    attempt_count: int | None
    max_attempts: int
    next_earliest_run_at: datetime | None
    dispatched_at: datetime | None
    finished_at: datetime | None
    fail_code: str | None
    fail_reason: str | None
    # What it reported last, in this attempt or, once that has ended, in the last one.
    progress: Any
    progress_at: datetime | None
    stalls_at: datetime | None
    seen_at: datetime
    locked: Locked | None
    pk: Any

    @property
    def last_seen_at(self) -> datetime | None:
        """The last sign of life of the worker that holds it."""
        signs = [at for at in (self.last_heartbeat_at, self.claimed_at) if at is not None]
        return max(signs, default=None)

    @property
    def is_late(self) -> bool:
        """Whether the worker that holds it under a lease has missed several heartbeats in a row."""
        if self.status != Status.PROCESSING or self.lease_expires_at is None:
            return False
        late_after = timedelta(seconds=LATE_AFTER_BEATS * conf.settings().heartbeat_sec)
        heard_at = self.last_heartbeat_at or self.claimed_at
        return heard_at is None or self.seen_at - heard_at > late_after


@dataclass(frozen=True)
class Surroundings:
    """What concerns every job of one table. ``workers`` is ``None`` if nobody watches them."""

    table: JobTable
    now: datetime
    pauses: Sequence[Pause] = ()
    last_pass_at: datetime | None = None
    held_reason: str | None = None
    pass_error: str | None = None
    workers: Mapping[tuple[WorkerKind, WorkerState], int] | None = None
    refused: Mapping[tuple[str, str], RefusedRow] = field(default_factory=dict)
    verdicts: Mapping[Any, ReapedJob] = field(default_factory=dict)

    def pause_of(self, job: JobFacts) -> Pause | None:
        """Return the pause that concerns a job."""
        names = (job.stage or "", job.type, f"{PAUSED_QUEUE_PREFIX}{job.queue}")
        return next((pause for pause in self.pauses if pause.name in names), None)

    def refusal(self, verb: Verb, job: JobFacts) -> RefusedRow | None:
        """Return the row's entry among those that cannot be written."""
        return self.refused.get((verb.value, job.key))

    @property
    def next_pass_at(self) -> datetime | None:
        """When the next pass is expected, if passes run."""
        return next_pass_after(self.last_pass_at)

    @property
    def reaper_is_away(self) -> bool:
        """Whether no pass has run for three intervals."""
        return is_away(self.now, self.last_pass_at)

    def here(self, *kinds: WorkerKind) -> int | None:
        """Return how many workers of these kinds (by default, of all) are here."""
        if self.workers is None:
            return None
        return sum(
            number
            for (kind, state), number in self.workers.items()
            if state is WorkerState.HERE and (not kinds or kind in kinds)
        )


def facts_of(table: JobTable, pks: Collection[object]) -> list[JobFacts]:
    """Return the facts of the jobs with these keys that exist."""
    return _facts(table, [table.prepare_pk(pk) for pk in pks])


def _facts(table: JobTable, ids: list[Any]) -> list[JobFacts]:
    rows = ask(table.connection(), table.facts_statement, {"ids": ids}) if ids else []
    words = {word: status.value for status, words in table.words.items() for word in words}
    end = len(JobFacts._fields) - 1
    found = []
    for row in rows:
        as_read = JobFacts._make([*row[:end], table.read_pk(*row[end:])])
        locked: Any = as_read.locked
        found.append(
            as_read._replace(
                status=words.get(as_read.status, as_read.status),
                progress=None if as_read.progress is None else json.loads(as_read.progress),
                locked=None if locked is None else Locked(**json.loads(locked)),
            )
        )
    return found


def surroundings(table: JobTable, jobs: Iterable[JobFacts] = ()) -> Surroundings:
    """Return what concerns these jobs of a table."""
    connection = table.connection()
    keys = [job.key for job in jobs]
    running = [job.pk for job in jobs if job.status == Status.PROCESSING]
    [(now, last_pass_at, held_reason, error)] = ask(
        connection, sql.render("statements/surroundings"), {}
    )
    rows = RefusedRow.objects.using(table.alias).filter(table=table.name, key__in=keys)
    return Surroundings(
        table,
        now,
        pauses=paused(table.model) if table.can_be_leased else (),
        last_pass_at=last_pass_at,
        held_reason=held_reason,
        pass_error=error,
        workers=standing.count(connection),
        refused={(row.verb, row.key): row for row in rows},
        verdicts=verdicts(table, running),
    )


def verdicts(table: JobTable, pks: Collection[object]) -> dict[Any, ReapedJob]:
    """Return what a pass would do now with those of the jobs that it would take, by their keys."""
    if not pks:
        return {}
    statement = statements.dry_run(table, among=statements.some_of(table))
    ids = [table.prepare_pk(pk) for pk in pks]
    params = {"ids": ids, "batch": len(ids), "skip": [], "silent_by": "infinity"}
    rows = send(table.connection(), statement, params, timeout_sec=STATEMENT_TIMEOUT_SEC)
    return {job.pk: job for job in jobs_of(table, rows)}


def running_within(table: JobTable, limit: str, name: str, most: int) -> list[str]:
    """Return the keys of the running jobs that take the slots of a ``stage`` or ``queue``, ``most``
    at most.
    """
    params = {"name": name, "most": most}
    statement = statements.running_within(table, limit)
    return [key for (key,) in ask(table.connection(), statement, params)]


def next_pass_after(last: datetime | None) -> datetime | None:
    """Return when a pass is expected after the last one, ``None`` if none has run."""
    return None if last is None else last + _intervals(1)


def is_away(now: datetime, last: datetime | None) -> bool:
    """Return whether no pass has run for three intervals, or ever."""
    return last is None or now - last > _intervals(AWAY_AFTER_INTERVALS)


def _intervals(number: int) -> timedelta:
    return timedelta(seconds=number * conf.settings().reaper_interval_sec)


def ask(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Send a question whose answer a person or a scrape awaits."""
    return fetch_within(
        connection,
        statement,
        params,
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
