"""Pausing a stage or a type: none of its jobs is claimed or dispatched until it is resumed.

What runs already runs on, and the reaper goes on with its work.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import models

from jobreaper import signals
from jobreaper.db import on_commit
from jobreaper.models import Job, Pause
from jobreaper.tables import JobTable, table_of


def pause(
    name: str,
    *,
    model: type[models.Model] = Job,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Pause a stage of a job table, or a type of ``Job``, and return whether it was not paused
    before. ``by`` and ``reason`` are for others to read.

    Raises:
        UnknownTable: ``model`` is no job table.
    """
    table = table_of(model)
    _, is_new = Pause.objects.using(table.alias).update_or_create(
        table=table.name, name=name, defaults={"by": by, "reason": reason}
    )
    _announce(table, name=name, paused=True, by=by, reason=reason)
    return is_new


def resume(name: str, *, model: type[models.Model] = Job, by: str | None = None) -> bool:
    """Let the jobs of a stage or type run again, and return whether it was paused.

    Raises:
        UnknownTable: ``model`` is no job table.
    """
    table = table_of(model)
    deleted, _ = Pause.objects.using(table.alias).filter(table=table.name, name=name).delete()
    if deleted:
        _announce(table, name=name, paused=False, by=by, reason=None)
    return bool(deleted)


def paused(model: type[models.Model] = Job) -> list[Pause]:
    """Return what is paused of a job table."""
    table = table_of(model)
    return list(Pause.objects.using(table.alias).filter(table=table.name).order_by("name"))


def is_paused(table: JobTable) -> models.Q:
    """Return the condition that a ``LeasedJob`` of ``table`` is of a paused stage or type."""
    names = Pause.objects.filter(table=table.name).values("name")
    of_stage = models.Q(stage__in=names)
    return of_stage | models.Q(type__in=names) if "type" in table.extras else of_stage


def _announce(table: JobTable, **what: Any) -> None:
    send = partial(signals.pause_changed.send_robust, table.model, table=table.name, **what)
    on_commit(table.connection(), send)
