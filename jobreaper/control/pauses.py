"""Pausing a stage, a type or a queue: its jobs are neither claimed nor dispatched until it is
resumed.

Running jobs continue, and so does the reaper.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import models
from django.db.models.functions import Substr

from jobreaper import signals, values
from jobreaper.db import on_commit, reading_any_time, retrying, sendable, storable
from jobreaper.models import Job, Pause
from jobreaper.states import PAUSED_QUEUE_PREFIX
from jobreaper.tables import JobTable, table_of


def pause(
    name: str,
    *,
    model: type[models.Model] = Job,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Pause a stage of a job table, a type of ``Job``, or the queue ``mail`` by the name
    ``"queue:mail"``. Return ``False`` if it was paused already. ``by`` and ``reason`` are recorded
    for people.

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError: the name is empty, longer than 255 characters, or cannot be stored.
    """
    table = table_of(model)
    _check(name)
    was_paused = _is_paused(table, name)
    who = {"by": _storable(by), "reason": _storable(reason)}
    connection = table.connection()

    def write(_: bool) -> None:
        connection.ensure_connection()
        Pause.objects.using(table.alias).update_or_create(
            table=table.name, name=name, defaults=sendable(connection, who)
        )

    retrying(connection, write)
    _announce(table, name=name, paused=True, **who)
    return not was_paused


def resume(name: str, *, model: type[models.Model] = Job, by: str | None = None) -> bool:
    """End the pause of a stage, type or queue, and return whether there was one.

    Raises:
        UnknownTable: ``model`` is no job table.
        ValueError: nothing can have the name.
    """
    table = table_of(model)
    _check(name)
    was_paused = _is_paused(table, name)
    if was_paused:
        retrying(table.connection(), lambda _: _pauses(table).filter(name=name).delete())
        _announce(table, name=name, paused=False, by=_storable(by), reason=None)
    return was_paused


def paused(model: type[models.Model] = Job) -> list[Pause]:
    """Return what is paused in a job table."""
    table = table_of(model)
    connection = table.connection()
    with reading_any_time(connection):
        return retrying(connection, lambda _: list(_pauses(table).order_by("name")))


def is_paused(table: JobTable) -> models.Q:
    """Return the condition that the stage, type or queue of a ``LeasedJob`` of ``table`` is
    paused.
    """
    here = Pause.objects.filter(table=table.name)
    paused = models.Q(stage__in=here.values("name"))
    if "type" in table.extras:
        paused |= models.Q(type__in=here.values("name"))
    if "queue" in table.extras:
        of_queues = here.filter(name__startswith=PAUSED_QUEUE_PREFIX)
        bare = Substr("name", len(PAUSED_QUEUE_PREFIX) + 1)
        paused |= models.Q(queue__in=of_queues.annotate(bare=bare).values("bare"))
    return paused


def _pauses(table: JobTable) -> models.QuerySet[Pause]:
    return Pause.objects.using(table.alias).filter(table=table.name)


def _is_paused(table: JobTable, name: str) -> bool:
    # Queried before the write: a write that is repeated cannot tell what was there before the first
    # try.
    return retrying(table.connection(), lambda _: _pauses(table).filter(name=name).exists())


def _check(name: str) -> None:
    try:
        values.short_name(name)
    except ValueError as error:
        raise ValueError(f"the name {name[:40]!r} is bad: {error}") from None


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _announce(table: JobTable, **what: Any) -> None:
    send = partial(signals.pause_changed.send_robust, table.model, table=table.name, **what)
    on_commit(table.connection(), send)
