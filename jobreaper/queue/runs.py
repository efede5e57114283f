"""Running a job with its handler and ending it according to the result; and running jobs one after
another in the time of a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Final

from django.db import DatabaseError

from jobreaper import signals
from jobreaper.db import (
    Depth,
    in_transaction,
    may_be_a_rows_fault,
    open_transactions,
    without_details,
)
from jobreaper.exceptions import BadResult, LeaseLost, OpenTransaction
from jobreaper.identity import forks_end_here
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import Run, claim_group, let_go
from jobreaper.protocol.ending import refuse_left_open
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.outcome import note_result
from jobreaper.queue.handlers import Handler, handlers, kind_of, plain, refuse_unrun
from jobreaper.tables import table_of

logger = logging.getLogger("jobreaper.runs")

NOTHING: Final = nullcontext()

# The counter of a job, by the verb that ended its lease.
OUTCOMES: Final[Mapping[str | None, str]] = {
    "finish": "succeeded",
    "fail": "failed",
    "release": "released",
    "withdraw": "released",
}


@dataclass
class Tally:
    """How many jobs were claimed, and how their attempts ended: finished, failed (temporarily or
    permanently) and given back, by the handler or after it. Lost jobs were ended or taken away by
    someone else; refused ones are those whose end the database refuses to write.
    """

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    refused: int = 0

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """Return what several count together."""
        return cls(*map(sum, zip(*map(astuple, tallies), strict=True)))


def call(
    handler: Handler,
    lease: Lease,
    before: Mapping[str, Depth] = MappingProxyType({}),
    within: AbstractContextManager[object] = NOTHING,
) -> BaseException | None:
    """Run a handler for a job whose lease still stands, and return its exception. ``before`` are
    the caller's transactions in this thread, from ``open_transactions()``. Only the handler itself
    runs ``within`` a context.
    """
    try:
        return _call(handler, lease, before, within)
    # A signal's receiver may exit too.
    except BaseException as error:
        return error


def _call(
    handler: Handler,
    lease: Lease,
    before: Mapping[str, Depth],
    within: AbstractContextManager[object],
) -> BaseException | None:
    if (lost := begin(lease)) is not None:
        return lost
    error: BaseException | None = None
    try:
        with within, forks_end_here():
            returned = handler(lease.job, lease)
        refuse_unrun(f"the handler of {kind_of(lease)}", returned)
        keep_result(lease, returned)
    # Any exception of a handler, including sys.exit(), affects only its own job.
    except BaseException as raised:
        error = without_details(raised)
    # The next job's writes must not become part of this one's transaction.
    try:
        refuse_left_open(holding_of(lease), "the handler", before)
    except OpenTransaction as left_open:
        error = error or left_open
    report(lease, error)
    return error


def begin(lease: Lease) -> LeaseLost | None:
    """Announce that a handler starts, or return why it must not."""
    try:
        lease.check()
    except LeaseLost as lost:
        return lost
    signals.run_started.send_robust(holding_of(lease).table.model, lease=lease)
    return None


def keep_result(lease: Lease, returned: object) -> None:
    """Keep what a handler returned for the statement that finishes its job. The work is done: what
    cannot be stored is logged, and the job finished without it.
    """
    if returned is None or lease.closed:
        return
    try:
        note_result(holding_of(lease), returned)
    except BadResult as bad:
        said = "what the handler of %s returned for %s is not stored: %s"
        logger.warning(said, kind_of(lease), lease.pk, bad)


def report(lease: Lease, error: BaseException | None) -> None:
    """Log a handler's exception, if it has failed, and announce that it has ended."""
    holding = holding_of(lease)
    if error is not None and not is_loss(lease, error):
        # The job's own failure, which follows, is an error with this exception: one is enough.
        is_last = holding.attempt >= lease.job.max_attempts
        level = logging.WARNING if is_last else logging.ERROR
        said = "the handler of %s failed on %s"
        logger.log(level, said, kind_of(lease), lease.pk, exc_info=error)
    signals.run_ended.send_robust(holding.table.model, lease=lease, error=error)


def is_loss(lease: Lease, error: BaseException) -> bool:
    """Return whether a run ended because it lost its lease, or its worker gives the job back, which
    is not a failure.
    """
    is_told = lease.lost or holding_of(lease).withdrawal is not None
    return isinstance(error, LeaseLost) and is_told


def run_due(limit: int, budget_sec: float) -> Tally:
    """Run at most ``limit`` due jobs in this thread, one after another, and start none after
    ``budget_sec`` seconds. Return the counts.

    Raises:
        django.db.Error: the database could not be reached.
    """
    ends_at = time.monotonic() + budget_sec
    tally = Tally()
    known = {type: plain(handler) for type, handler in handlers().items()}
    while tally.claimed < limit and time.monotonic() < ends_at:
        # One at a time, so that two ticks share the jobs and nothing has to be given back.
        runs = claim_group(table_of(Job), 1, types=known)
        if not runs:
            break
        tally.claimed += 1
        lease = runs[0].lease
        before = open_transactions()
        try:
            outcome = _end_alone(runs[0], call(known[kind_of(lease)], lease, before))
        finally:
            heartbeat.heart.remove(runs[0].holding)
        setattr(tally, outcome, getattr(tally, outcome) + 1)
    return tally


def _end_alone(run: Run, error: BaseException | None) -> str:
    lease = run.lease
    if isinstance(error, KeyboardInterrupt):
        if not lease.closed:
            lease.release()
        raise error
    if lease.closed:
        return OUTCOMES[run.holding.ended_by]
    if error is not None and is_loss(lease, error):
        return "lost"
    try:
        with holding_of(lease).failing_by(error):
            lease.finish() if error is None else lease.fail(error)
    except LeaseLost:
        return "lost"
    except DatabaseError as refusal:
        connection = run.holding.table.connection(run.holding.alias)
        if in_transaction(connection) or not may_be_a_rows_fault(connection, refusal):
            raise
        let_go("finish" if error is None else "fail", run, refusal)
        return "refused"
    return OUTCOMES[run.holding.ended_by]
