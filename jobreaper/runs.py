"""Running a job by its handler and ending it by what came of that; one job after another for those
who have a request's time for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from jobreaper import heartbeat, signals
from jobreaper.celery import dispatcher
from jobreaper.db import Depth, fetch, open_transactions
from jobreaper.exceptions import LeaseLost, OpenTransaction
from jobreaper.handlers import Handler, handlers, refuse_unrun
from jobreaper.lease_groups import claim_group
from jobreaper.leases import Lease
from jobreaper.models import Job
from jobreaper.tables import table_of
from jobreaper.worker import forks_end_here

logger = logging.getLogger(__name__)


# How a job is counted, by the verb that ended its lease.
OUTCOMES: Final[Mapping[str | None, str]] = {
    "finish": "succeeded",
    "fail": "failed",
    "release": "released",
}


@dataclass
class Tally:
    """How many jobs were claimed, and how their attempts ended: finished, failed (be it for now or
    for good) and given back, by the handler itself or after it; lost are those that somebody else
    has ended or taken meanwhile.
    """

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0


def call(
    handler: Handler, lease: Lease, before: Mapping[str, Depth] = MappingProxyType({})
) -> BaseException | None:
    """Run a handler on a job whose lease still stands; return what it raised. ``before`` are the
    transactions of a caller's in this thread, as ``open_transactions()`` tells.
    """
    try:
        return _call(handler, lease, before)
    # A receiver of signals may exit too.
    except BaseException as error:
        return error


def _call(handler: Handler, lease: Lease, before: Mapping[str, Depth]) -> BaseException | None:
    try:
        lease.check()
    except LeaseLost as lost:
        return lost
    error: BaseException | None = None
    model = lease.table.model
    signals.run_started.send_robust(model, lease=lease)
    try:
        with forks_end_here():
            returned = handler(lease.job, lease)
        refuse_unrun(f"the handler of {lease.job.type}", returned)
    # Whatever a handler raises, sys.exit() included, is its own job's affair.
    except BaseException as raised:
        error = raised
    # The next job's writes must not end up in this one's transaction.
    try:
        lease.refuse_left_open("the handler", before)
    except OpenTransaction as left_open:
        error = error or left_open
    if error is not None and not is_loss(lease, error):
        logger.error("the handler of %s failed on %s", lease.job.type, lease.pk, exc_info=error)
    signals.run_ended.send_robust(model, lease=lease, error=error)
    return error


def is_loss(lease: Lease, error: BaseException) -> bool:
    """Return whether a run ended by the loss of its lease, which is nobody's failure."""
    return isinstance(error, LeaseLost) and lease.lost


def unhandled_types(types: Iterable[str]) -> dict[str, int]:
    """Return the types of queued jobs that neither a handler of ``types`` nor a Celery task runs,
    with how many there are among the first in line, counted to 1,000.
    """
    stages = dispatcher.handlers(Job)
    if None in stages:
        return {}
    table = table_of(Job)
    params = {
        "types": list(types),
        "stages": list(stages),
        "look_at": dispatcher.MOST_LOOKED_AT,
        "most": dispatcher.MOST_UNHANDLED,
    }
    return dict(fetch(table.connection(), table.statement("unhandled_types"), params))


def has_handler(job: Job) -> bool:
    """Return whether a handler or a Celery task of this project runs ``job``."""
    stages = dispatcher.handlers(Job)
    return None in stages or job.stage in stages or job.type in handlers()


def run_due(limit: int, budget_sec: float) -> Tally:
    """Run at most ``limit`` due jobs in this thread, one after another, and start none after
    ``budget_sec`` seconds. Return what was done.

    Raises:
        django.db.Error: the database could not be reached.
    """
    ends_at = time.monotonic() + budget_sec
    tally = Tally()
    known = handlers()
    while tally.claimed < limit and time.monotonic() < ends_at:
        # One at a time, so that two ticks share what there is and nothing has to be given back.
        runs = claim_group(table_of(Job), 1, types=known)
        if not runs:
            break
        tally.claimed += 1
        lease = runs[0].lease
        before = open_transactions()
        try:
            outcome = _end_alone(lease, call(known[lease.job.type], lease, before))
        finally:
            heartbeat.heart.remove(lease)
        setattr(tally, outcome, getattr(tally, outcome) + 1)
    return tally


def _end_alone(lease: Lease, error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        if not lease.closed:
            lease.release()
        raise error
    if lease.closed:
        return OUTCOMES[lease.ended_by]
    if error is not None and is_loss(lease, error):
        return "lost"
    try:
        lease.finish() if error is None else lease.fail(error)
    except LeaseLost:
        return "lost"
    return OUTCOMES[lease.ended_by]
