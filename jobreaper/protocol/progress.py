"""What a job's function reports of how far it is: kept until the next heartbeat carries it.

A report sends nothing. Of several between two heartbeats, the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobreaper.db import storable
from jobreaper.exceptions import BadProgress
from jobreaper.identity import local_clock
from jobreaper.progress import LARGEST_NUMBER, LONGEST_NOTE, PROGRESS_FIELDS
from jobreaper.protocol.holding import Beat, Holding


def note(holding: Holding, done: float, total: float | None, said: str | None) -> float | None:
    """Keep a report until a heartbeat carries it. Return by when it has to, in seconds of
    ``local_clock()``, if the usual one may come too late.

    Raises:
        BadProgress: it is no progress, or the table has no columns for it.
    """
    text = _as_json(done, total, said)
    if not holding.table.tracks_progress:
        names = ", ".join(PROGRESS_FIELDS)
        raise BadProgress(f"{holding.table.name} does not have the fields {names}; see docs/api.md")
    is_first = holding.report is None
    holding.report = text
    if not is_first or (ends_at := holding.stalls_by) is None:
        return None
    now = local_clock()
    return now + max(ends_at - now, 0.0) / 2


def _as_json(done: object, total: object, said: object) -> str:
    report = {"done": _number("done", done)}
    if total is not None:
        report["total"] = _number("total", total)
    if said is not None:
        if not isinstance(said, str):
            raise BadProgress(f"note must be text, not of type {type(said).__name__}")
        report["note"] = storable(said[:LONGEST_NOTE])[:LONGEST_NOTE]
    return json.dumps(report, ensure_ascii=False)


def _number(name: str, value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadProgress(f"{name} must be a number, not of type {type(value).__name__}")
    # NaN is not in between either.
    if not 0 <= value <= LARGEST_NUMBER:
        raise BadProgress(f"{name} must be from 0 to 2**53")
    return value


def to_carry(table_tracks: bool, leases: Sequence[Holding]) -> list[str | None] | None:
    """Return what was reported under each of ``leases``, or ``None`` if nothing was."""
    if not table_tracks:
        return None
    reports = [lease.report for lease in leases]
    return reports if any(report is not None for report in reports) else None


def last_reports(leases: Sequence[Holding]) -> str:
    """Return what no heartbeat has carried yet, as JSON by the keys of the jobs."""
    left = [(lease.key, lease.report) for lease in leases if lease.report is not None]
    # Each is JSON already.
    return f"{{{','.join(f'{json.dumps(str(key))}:{text}' for key, text in left)}}}"


def statement_of(reports: list[str | None] | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the heartbeat that carries ``reports``, and its parameter."""
    if reports is None:
        return "heartbeat", {}
    return "heartbeat_with_progress", {"progress": reports}


def carried(
    reports: Sequence[str | None] | None, leases: Sequence[Holding], beats: Sequence[Beat]
) -> None:
    """Forget the reports that a heartbeat has carried: not those of rows that were locked, nor what
    was reported meanwhile.
    """
    for lease, report, beat in zip(leases, reports or (), beats, strict=False):
        if beat.held and beat.remaining_sec is not None and lease.report is report:
            lease.report = None
