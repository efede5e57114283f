"""What statements say about progress: for a table without its columns, nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.progress import PROGRESS_FIELDS
from jobreaper.tables.shape import Shape

_FRAGMENTS: Final = ("begins_unreported", "lost_progress", "progress_details", "is_stalled")
_TEXTS: Final[Mapping[str, SQL]] = {
    "no_stall": SQL("{stalls_at} = NULL,"),
    "stall_from_claim": SQL(",\nstatement_timestamp() + policy.stall_after"),
    "stall_as_it_is": SQL(",\njob.{stalls_at}"),
    "stalls_at_returned": SQL(", job.{stalls_at} AS stalls_at"),
    "stalls_at_renewed": SQL(", renewed.stalls_at"),
}
_UNLESS_STALLED: Final = SQL(
    "AND NOT ({is_stalled}\n         AND job.{lease_expires_at} < statement_timestamp())"
)


def of_table(table: Shape, parts: Mapping[str, Composable]) -> dict[str, Composable]:
    """Return the parts about progress. ``parts`` are those of a table with leases."""
    if not table.tracks_progress:
        nothing = dict.fromkeys((*_FRAGMENTS, *_TEXTS, "unless_stalled"), SQL(""))
        return {**nothing, "is_stalled": SQL("false")}
    fields = {name: Identifier(str(table.extras[name].column)) for name in PROGRESS_FIELDS}
    parts = {**parts, **fields}
    found: dict[str, Composable] = {**fields}
    found |= {name: sql.compose(f"fragments/{name}", parts) for name in _FRAGMENTS}
    found |= {name: text.format(**parts) for name, text in _TEXTS.items()}
    found["unless_stalled"] = _UNLESS_STALLED.format(**{**parts, **found})
    return found


def carried(parts: Mapping[str, Composable]) -> dict[str, Composable]:
    """Return the parts of a heartbeat that carries what was reported."""
    found = {**parts, "reported": sql.compose("fragments/reported", parts)}
    found["report"] = sql.compose("fragments/reported_of_job", parts)
    stalls_at = sql.compose("fragments/stalls_after_report", found)
    takes = sql.compose("fragments/takes_report", found)
    found["carries"] = SQL("{}\n{} = {},").format(takes, parts["stalls_at"], stalls_at)
    found["stall_as_it_is"] = SQL(",\n{}").format(stalls_at)
    return found


def last_report(table: Shape, parts: Mapping[str, Composable], *, many: bool) -> Composable:
    """Return what writes the last report of an attempt that ends."""
    if not table.tracks_progress:
        return SQL("")
    report = SQL("(%(reports)s::jsonb -> job.{id}::text)" if many else "%(report)s::jsonb")
    return sql.compose("fragments/takes_report", {**parts, "report": report.format(**parts)})
