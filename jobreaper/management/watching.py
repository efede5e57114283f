"""``manage.py reap --watch``: how everything stands, drawn again and again on a terminal.

It needs the extra ``terminal`` (rich). It only looks: it runs no pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error, connections

from jobreaper.db import connection_for, in_words
from jobreaper.explaining.words import between, duration
from jobreaper.management.options import BAD_USAGE
from jobreaper.models import Worker
from jobreaper.overview import headline, reaper_now, stuck_jobs, table_now
from jobreaper.presence import standing
from jobreaper.states import LeaseState, Status
from jobreaper.tables import JobTable, by_alias, named

EVERY_SEC: Final = 2.0
MOST_WORKERS: Final = 20
MOST_STUCK: Final = 15

_COLORS: Final = {"good": "green", "late": "yellow", "bad": "red"}


def watch(names: list[str] | None, *, stdout: Any, once: bool = False) -> None:
    """Draw until Ctrl-C; with ``once``, a single time.

    Raises:
        CommandError: rich is not installed.
        UnknownTable: there is no such job table.
    """
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        said = "--watch needs rich: pip install jobreaper[terminal]"
        raise CommandError(said, returncode=BAD_USAGE) from None
    tables = named(names)
    console = Console(file=stdout)
    if once:
        console.print(drawn(tables))
        return
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(drawn(tables), refresh=True)
            time.sleep(EVERY_SEC)


def drawn(tables: list[JobTable]) -> Any:
    """Return one picture. What cannot be read is said to be so."""
    from rich.console import Group
    from rich.text import Text

    try:
        return Group(*_parts(tables))
    except Error as error:
        for alias in by_alias(tables):
            connections[alias].close_if_unusable_or_obsolete()
        return Text(in_words(error), style="red")


def _parts(tables: list[JobTable]) -> Iterator[Any]:
    from rich.text import Text

    now = [table_now(table.connection(), table) for table in tables]
    stuck = stuck_jobs(tables)
    said = headline(now, stuck)
    yield Text(said.text, style=f"bold {_COLORS[said.tone]}")
    for alias in sorted(by_alias(tables)):
        reaper = reaper_now(connection_for(alias))
        yield Text(reaper.in_words, style=_COLORS[reaper.tone])
    yield _tables(now)
    for alias in sorted(by_alias(tables)):
        yield _workers(alias)
    if stuck:
        yield _stuck(stuck)


def _tables(now: Any) -> Any:
    from rich.table import Table

    shown = Table(title="Job tables", title_justify="left", expand=True)
    shown.add_column("table", no_wrap=True)
    for name in ("queued", *LeaseState, *(Status.SUCCESS, Status.FAILED), "oldest due"):
        shown.add_column(str(name), justify="right")
    for each in now:
        if each.standing is None:
            shown.add_row(each.table.name, f"[red]{each.error}[/red]")
            continue
        leases = [each.standing.leases.get(state, 0) for state in LeaseState]
        oldest = each.standing.oldest_due_sec
        shown.add_row(
            each.table.name,
            f"{each.standing.queued:,}",
            *(
                f"[red]{number:,}[/red]" if number and state in _LOST else f"{number:,}"
                for state, number in zip(LeaseState, leases, strict=True)
            ),
            *(str(each.ended.get(status, "-")) for status in (Status.SUCCESS, Status.FAILED)),
            duration(oldest) if oldest else "-",
        )
    return shown


_LOST: Final = (LeaseState.EXPIRED, LeaseState.NONE)


def _workers(alias: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    shown = Table(title="Workers", title_justify="left", expand=True)
    for name in ("worker", "state", "kind", "leases", "last seen"):
        shown.add_column(name)
    rows = standing.with_state(Worker.objects.using(alias).order_by("-seen_at"))
    for row in rows[:MOST_WORKERS]:
        color = {"here": "green", "silent": "yellow"}.get(row.state, "red")
        seen = between(row.looked_at, row.seen_at)
        state = Text(row.state, style=color)
        shown.add_row(row.worker, state, row.kind, str(row.leases), f"{seen} ago")
    return shown


def _stuck(stuck: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    shown = Table(title="Stuck jobs", title_justify="left", expand=True)
    shown.add_column("job")
    shown.add_column("for", no_wrap=True)
    shown.add_column("why", ratio=1)
    shown.add_column("what next", ratio=1)
    for job in stuck[:MOST_STUCK]:
        age = "-" if job.age_sec is None else duration(job.age_sec)
        shown.add_row(
            Text(f"{job.table.name} {job.pk}"),
            age,
            Text(job.explanation.headline),
            Text(job.explanation.next),
        )
    return shown
