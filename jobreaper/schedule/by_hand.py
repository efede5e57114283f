"""What an operator does to a schedule."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from jobreaper.exceptions import UnknownSchedule
from jobreaper.models import Job
from jobreaper.schedule.declared import declared
from jobreaper.schedule.ticks import make, row_of
from jobreaper.tables import table_of


def pause_schedule(name: str, *, by: str | None = None) -> bool:
    """Make no jobs of a schedule until it is resumed; times that pass are left out. Return whether
    it was not paused before. ``by`` is recorded for people.

    Raises:
        UnknownSchedule: no worker has declared it.
    """
    _require(name)
    unpaused = row_of(name).filter(paused_at__isnull=True)
    return bool(unpaused.update(paused_at=Now(), paused_by=by))


def resume_schedule(name: str) -> bool:
    """End the pause of a schedule, and return whether there was one.

    Raises:
        UnknownSchedule: no worker has declared it.
    """
    _require(name)
    paused = row_of(name).filter(paused_at__isnull=False)
    return bool(paused.update(paused_at=None, paused_by=None))


def run_schedule(name: str) -> Job:
    """Make a job of a schedule now, even if it is paused or one is running, and return it. Its
    times stay as they are.

    Raises:
        UnknownSchedule: neither a handler nor the settings declare it.
    """
    timetable = declared().get(name)
    if timetable is None:
        known = ", ".join(sorted(declared())) or "none"
        raise UnknownSchedule(f"there is no schedule {name!r}; known here: {known}")
    with transaction.atomic(using=table_of(Job).alias):
        job = make(timetable)
        row_of(name).update(made_at=Now(), job_id=str(job.pk))
    return job


def _require(name: str) -> None:
    if not row_of(name).exists():
        raise UnknownSchedule(
            f"there is no schedule {name!r}, or no worker has started with it yet"
        )
