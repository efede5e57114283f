"""Pausing a stage or a type: none of its jobs is claimed or dispatched until it is resumed.

What runs already runs on, and the reaper goes on with its work.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import models

from jobreaper import signals
from jobreaper.db import on_commit, retrying
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
    was_paused = _is_paused(table, name)
    values = {"by": by, "reason": reason}
    pauses = Pause.objects.using(table.alias)
    retrying(
        table.connection(),
        lambda _: pauses.update_or_create(table=table.name, name=name, defaults=values),
    )
    _announce(table, name=name, paused=True, **values)
    return not was_paused


def resume(name: str, *, model: type[models.Model] = Job, by: str | None = None) -> bool:
    """Let the jobs of a stage or type run again, and return whether it was paused.

    Raises:
        UnknownTable: ``model`` is no job table.
    """
    table = table_of(model)
    was_paused = _is_paused(table, name)
    if was_paused:
        retrying(table.connection(), lambda _: _pauses(table).filter(name=name).delete())
        _announce(table, name=name, paused=False, by=by, reason=None)
    return was_paused


def paused(model: type[models.Model] = Job) -> list[Pause]:
    """Return what is paused of a job table."""
    table = table_of(model)
    return retrying(table.connection(), lambda _: list(_pauses(table).order_by("name")))


def is_paused(table: JobTable) -> models.Q:
    """Return the condition that a ``LeasedJob`` of ``table`` is of a paused stage or type."""
    names = Pause.objects.filter(table=table.name).values("name")
    of_stage = models.Q(stage__in=names)
    return of_stage | models.Q(type__in=names) if "type" in table.extras else of_stage


def _pauses(table: JobTable) -> models.QuerySet[Pause]:
    return Pause.objects.using(table.alias).filter(table=table.name)


def _is_paused(table: JobTable, name: str) -> bool:
    # Asked beforehand: a write that is sent again cannot tell what was before the first try.
    return retrying(table.connection(), lambda _: _pauses(table).filter(name=name).exists())


def _announce(table: JobTable, **what: Any) -> None:
    send = partial(signals.pause_changed.send_robust, table.model, table=table.name, **what)
    on_commit(table.connection(), send)
