"""Makes the jobs of schedules when they are due.

Any number of processes may do so: whoever locks the schedule's row makes the job and sets the next
time in one transaction. The database's clock decides what is due.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobreaper import sql
from jobreaper.db import fetch, in_words, may_be_a_rows_fault, retrying
from jobreaper.exceptions import JobreaperError
from jobreaper.models import Job, Schedule
from jobreaper.queue.enqueueing import enqueue
from jobreaper.schedule.declared import declared
from jobreaper.states import CatchUp, Dedupe
from jobreaper.tables import table_of
from jobreaper.timetable import Timetable

logger = logging.getLogger("jobreaper.schedule")

# A schedule may be resumed, deleted or declared anew by others at any time.
LONGEST_LOOK_SEC: Final = 30.0
SHORTEST_LOOK_SEC: Final = 0.1

# With ``catch_up="none"``, a job is made if its time passed no longer ago than this.
ON_TIME: Final = timedelta(minutes=1)

# If a schedule's job cannot be made, it is tried again after this time.
TRY_AGAIN: Final = timedelta(minutes=1)

# Jobs of one schedule that are made in one transaction, if all that were missed are made up for.
MOST_AT_ONCE: Final = 100


class Scheduler:
    """Makes due jobs, for one process. ``turn()`` says when it has to be called again."""

    def __init__(self) -> None:
        self._has_declared = False

    def turn(self) -> float:
        """Make the jobs that are due, and return in how many seconds to look again.

        Raises:
            django.db.Error: the database could not be reached; nothing was made.
        """
        timetables = declared()
        if not timetables:
            return LONGEST_LOOK_SEC
        connection = table_of(Job).connection()
        if not self._has_declared:
            self._declare(connection, timetables)
            self._has_declared = True
        due_sec, known = _look(connection, timetables)
        if known < len(timetables):
            self._declare(connection, timetables)
        if due_sec is not None and due_sec <= 0:
            retrying(connection, lambda _: _make_due(connection, timetables))
            due_sec, _ = _look(connection, timetables)
        if due_sec is None:
            return LONGEST_LOOK_SEC
        # Where it is still due, another process has locked it, or there is more to make up for.
        return min(max(due_sec, SHORTEST_LOOK_SEC), LONGEST_LOOK_SEC)

    def _declare(
        self, connection: BaseDatabaseWrapper, timetables: Mapping[str, Timetable]
    ) -> None:
        """Record the schedules; one that is new, or differs now, begins with its next time. Later
        only missing ones are added, since a process started since then may know better.
        """
        [(now,)] = fetch(connection, sql.render("statements/schedules_now"), {})
        statement = sql.render("statements/declare_schedule")
        for name, timetable in sorted(timetables.items()):
            params = {
                "name": name,
                "definition": json.dumps(timetable.definition()),
                "next_at": timetable.after(now),
                "replaces": not self._has_declared,
            }
            try:
                self._record(connection, statement, params)
            except DatabaseError as error:
                if not may_be_a_rows_fault(connection, error):
                    raise
                logger.error("the schedule %s cannot be recorded: %s", name, in_words(error))

    def _record(
        self, connection: BaseDatabaseWrapper, statement: str, params: dict[str, Any]
    ) -> None:
        retrying(connection, lambda _: fetch(connection, statement, params))


def make(timetable: Timetable, at: datetime | None = None) -> Job:
    """Make a schedule's job for this time, or for now. Return the job that it has already, if there
    is an unfinished one for this time or, without overlap, any.
    """
    key = f"schedule:{timetable.name}"
    if at is not None and timetable.overlap:
        key += f":{at:%Y-%m-%dT%H:%M:%SZ}"
    return enqueue(
        timetable.type,
        timetable.payload,
        org_id=timetable.org_id,
        run_at=at,
        stage=timetable.stage,
        max_attempts=timetable.max_attempts,
        priority=timetable.priority,
        queue=timetable.queue,
        dedupe=None if at is None else Dedupe.SKIP.value,
        dedupe_key=None if at is None else key,
    )


def row_of(name: str) -> QuerySet[Schedule]:
    """Return the row of a schedule."""
    return Schedule.objects.using(table_of(Job).alias).filter(name=name)


def _look(
    connection: BaseDatabaseWrapper, timetables: Mapping[str, Timetable]
) -> tuple[float | None, int]:
    """Return in how many seconds one of them is due, and how many are recorded."""
    statement = sql.render("statements/schedules_due_in")
    [(due_sec, known)] = fetch(connection, statement, _as_given(timetables))
    return due_sec, known


def _make_due(connection: BaseDatabaseWrapper, timetables: Mapping[str, Timetable]) -> None:
    statement = sql.render("statements/due_schedules")
    with transaction.atomic(using=connection.alias):
        for name, *row in fetch(connection, statement, _as_given(timetables)):
            _make(connection, timetables[name], *row)


def _as_given(timetables: Mapping[str, Timetable]) -> dict[str, Any]:
    given = [
        {"name": name, "definition": timetable.definition()}
        for name, timetable in timetables.items()
    ]
    return {"given": json.dumps(given)}


def _make(
    connection: BaseDatabaseWrapper,
    timetable: Timetable,
    next_at: datetime,
    is_paused: bool,
    now: datetime,
) -> None:
    """Make what is due of one schedule, whose row is locked, and set its next time."""
    times = [] if is_paused else _times(timetable, next_at, now)
    changes: dict[str, Any] = {"error": None, "next_at": timetable.after(now)}
    if timetable.catch_up == CatchUp.ALL and times:
        changes["next_at"] = timetable.after(times[-1])
    try:
        # The next time is recorded together with the jobs, or neither is.
        with transaction.atomic(using=connection.alias):
            if jobs := [make(timetable, at) for at in times]:
                changes |= {"ticked_at": times[-1], "made_at": now, "job_id": str(jobs[-1].pk)}
            row_of(timetable.name).update(**changes)
    except (DatabaseError, JobreaperError, ValueError) as error:
        said = in_words(error)
        logger.error("the job of the schedule %s cannot be made: %s", timetable.name, said)
        # The row itself may be what the database refuses.
        with suppress(DatabaseError), transaction.atomic(using=connection.alias):
            row_of(timetable.name).update(error=said, next_at=now + TRY_AGAIN)


def _times(timetable: Timetable, next_at: datetime, now: datetime) -> list[datetime]:
    """Return the times for which to make a job. ``next_at`` is the first one that is due."""
    if timetable.catch_up == CatchUp.ALL:
        later = takewhile(lambda at: at <= now, timetable.times_after(next_at))
        return [next_at, *islice(later, MOST_AT_ONCE - 1)]
    last = timetable.last_until(now) or next_at
    if timetable.catch_up == CatchUp.NONE and last < now - ON_TIME:
        return []
    return [max(last, next_at)]
