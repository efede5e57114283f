"""The decision to hold a pass, in one place.

After an outage of PostgreSQL or a jump of its clock, every lease may have run out although its
worker is healthy. The hold gives workers a moment to send a heartbeat before anything is reaped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, sql
from jobreaper.db import fetch
from jobreaper.identity import local_clock, machine
from jobreaper.tables import statements
from jobreaper.tables.statements import LEAST_TOGETHER, LEAST_WORKERS

# Two clocks of which neither is stepped drift apart by less than this.
DRIFT: Final = 0.001


class Moment(NamedTuple):
    """One moment by two clocks: the database's, and this machine's in seconds since its start,
    which is never set.
    """

    database: datetime
    machine_sec: float


class Answer(NamedTuple):
    """What the database says of its clock and of its last start: its time ``now``, the ``earlier``
    moments that this machine knows, and for how many seconds it is up, ``None`` if no pass had run
    before. It was asked, and has answered, at times of the machine's clock.
    """

    now: datetime
    earlier: Sequence[Moment]
    up_sec: float | None
    asked_sec: float
    answered_sec: float


_clocks = cache(statements.clocks)


def moments(rows: Iterable[tuple[Any, ...]], start: int) -> list[Moment]:
    """Return the moments in a statement's rows, from the column ``start`` on."""
    return [Moment(*row[start:]) for row in rows if row[start] is not None]


def reason_to_hold(connection: BaseDatabaseWrapper) -> str | None:
    """Return why a pass must reap nothing now, or ``None`` if it may continue. If no pass had run
    before, no worker can be waiting to send a heartbeat, and nothing is held.
    """
    grace_sec = conf.settings().recovery_grace_sec
    if not grace_sec:
        return None
    asked_sec = local_clock()
    params = {"machine": machine(), "grace_sec": grace_sec}
    rows = fetch(connection, _clocks(), params)
    answered_sec = local_clock()
    up_sec = server_up_sec(connection)
    earlier = moments(rows, 1)
    return reason_by(Answer(rows[0][0], earlier, up_sec, asked_sec, answered_sec), grace_sec)


def clock_jump_sec(now: Moment, earlier: Sequence[Moment], tolerance_sec: float) -> float | None:
    """Return how many seconds the database's clock has gone on more than the machine's since the
    ``earlier`` moments; ``None`` where that is no more than ``tolerance_sec`` and the drift since
    some of them, or where there are none.
    """
    jumps = []
    for then in earlier:
        machine_sec = now.machine_sec - then.machine_sec
        ahead_sec = (now.database - then.database).total_seconds() - machine_sec
        jumps.append(ahead_sec if ahead_sec > tolerance_sec + DRIFT * machine_sec else None)
    if not jumps or None in jumps:
        return None
    return min(jump for jump in jumps if jump is not None)


def reason_by(answer: Answer, grace_sec: float) -> str | None:
    """Return why a pass must reap nothing now, by what the database has answered."""
    middle_sec = (answer.asked_sec + answer.answered_sec) / 2
    waited_sec = answer.answered_sec - answer.asked_sec
    jump_sec = clock_jump_sec(
        Moment(answer.now, middle_sec), answer.earlier, conf.settings().heartbeat_sec + waited_sec
    )
    if jump_sec is not None:
        return (
            f"PostgreSQL's clock has jumped ahead by {jump_sec:.0f} s; workers have "
            f"{grace_sec:g} s to beat again (RECOVERY_GRACE_SEC)"
        )
    # A start, a recovery from a crash, or a failover.
    if answer.up_sec is not None and answer.up_sec < grace_sec:
        return (
            f"PostgreSQL came up {answer.up_sec:.0f} s ago; workers have until {grace_sec:g} s "
            "after that to beat again (RECOVERY_GRACE_SEC)"
        )
    return None


def server_up_sec(connection: BaseDatabaseWrapper) -> float | None:
    """Return for how many seconds the server has been available since its last outage; ``None`` if
    no pass had run before.
    """
    up_sec: float | None
    [(up_sec,)] = fetch(connection, sql.render("statements/server_back"), {})
    return up_sec


def common_silence(
    silent_sec: Sequence[float],
    *,
    well: int,
    within_sec: float,
    leases: Sequence[int] | None = None,
    leases_of_well: int | None = None,
) -> bool:
    """Return whether workers fell silent by one cause that is not their own death, such as a
    network or a pooler that is away.

    ``silent_sec`` is for how many seconds each has been silent, ``well`` how many others are not;
    ``leases`` is how many each of the silent ones holds, by default one, and ``leases_of_well``
    what the others hold. It is one cause where at least ``LEAST_TOGETHER`` leases, of at least
    ``LEAST_WORKERS`` workers, fell silent within ``within_sec`` of each other, and they are more
    than half of the workers that were well before or, where that is known, of the leases.
    """
    held = leases or [1] * len(silent_sec)
    still_held = inf if leases_of_well is None else leases_of_well
    ordered = sorted(zip(silent_sec, held, strict=True))
    sums = list(accumulate((count for _, count in ordered), initial=0))
    for start, (first_sec, _) in enumerate(ordered):
        end = bisect_right(ordered, first_sec + within_sec, key=itemgetter(0))
        workers, together = end - start, sums[end] - sums[start]
        if (
            workers >= LEAST_WORKERS
            and together >= LEAST_TOGETHER
            and (workers > well or together > still_held)
        ):
            return True
    return False
