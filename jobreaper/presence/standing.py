"""How workers stand: here, silent or gone. One rule, for people and for the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from jobreaper import conf
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.db import fetch
from jobreaper.presence import statements
from jobreaper.states import WorkerKind, WorkerState


def with_state(workers: QuerySet[Any]) -> QuerySet[Any]:
    """Return workers with their ``state``, a ``WorkerState``, and ``looked_at``, the database's
    time.
    """
    state: Any = RawSQL(statements.state(*_limits()), (), TextField())  # noqa: S611  no input
    found: QuerySet[Any] = workers.annotate(state=state, looked_at=Now())
    return found


def count(connection: BaseDatabaseWrapper) -> Counter[tuple[WorkerKind, WorkerState]] | None:
    """Return how many workers of each kind are here, silent and gone; ``None`` if presence is
    switched off, because nobody knows then.
    """
    if not conf.settings().presence_grace_sec:
        return None
    found: Counter[tuple[WorkerKind, WorkerState]] = Counter()
    for kind, state, number in fetch(connection, statements.count(*_limits()), {}):
        # A foreign writer may call itself anything.
        known = WorkerKind(kind) if kind in set(WorkerKind) else WorkerKind.FOREIGN
        found[known, WorkerState(state)] += number
    return found


def _limits() -> tuple[float, float]:
    settings = conf.settings()
    return LATE_AFTER_BEATS * settings.heartbeat_sec, settings.default_policy.lease_sec
