"""Finds queued jobs that nothing in this project runs, and names them once in the log."""

from __future__ import annotations

import logging
from typing import Final

from jobreaper.db import fetch
from jobreaper.models import Job
from jobreaper.queue.handlers import find, handlers, stages_elsewhere
from jobreaper.tables import JobTable, hidden

logger = logging.getLogger("jobreaper.handlers")

# Enough to say that a type has no handler; a larger number would say nothing more.
MOST_UNHANDLED: Final = 1000
# Reading this much of an index takes about ten milliseconds.
MOST_LOOKED_AT: Final = 100_000

# The last report for each table: a waiting job is worth one line, not one every few seconds.
_reported: Final[dict[str, frozenset[str | None]]] = {}
_reported_as_hidden: Final[set[str]] = set()


def has_handler(job: Job) -> bool:
    """Return whether a handler, or a task of another source, runs ``job``."""
    stages = stages_elsewhere(Job)
    is_known = None in stages or job.stage in stages or job.type in handlers()
    return is_known or find(job.type) is not None


def unhandled(table: JobTable) -> dict[str | None, int]:
    """Return the types of queued jobs that neither a handler nor another source runs, with their
    number among the first in line, counted up to 1,000. For a table other than the ready-made one,
    return the stages.
    """
    stages = stages_elsewhere(table.model)
    if None in stages:
        return {}
    params = {
        "types": list(handlers()) if table.model is Job else None,
        "stages": list(stages),
        "look_at": MOST_LOOKED_AT,
        "most": MOST_UNHANDLED,
    }
    return dict(fetch(table.connection(), table.statement("unhandled"), params))


def report_hidden(table: JobTable) -> None:
    """Log once where row-level security hides jobs from this role, which raises no error."""
    reason = hidden(table.connection(), [table]).get(table.name)
    if reason is not None and table.name not in _reported_as_hidden:
        logger.warning("%s", reason)
        _reported_as_hidden.add(table.name)


def report_unhandled(table: JobTable) -> dict[str | None, int]:
    """Log what ``unhandled()`` finds if something is new, and return it."""
    found = unhandled(table)
    if found.keys() - _reported.get(table.name, frozenset()):
        logger.warning("nothing handles these jobs of %s, so they wait: %s", table.name, found)
    _reported[table.name] = frozenset(found)
    return found
