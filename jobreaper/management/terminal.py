"""What ``manage.py work`` shows at a terminal: what runs and for how long, below the log.

Anywhere else, and where rich is not installed, there is only the log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from jobreaper.identity import local_clock
from jobreaper.queue.handlers import kind_of
from jobreaper.queue.worker import Worker

if TYPE_CHECKING:
    from rich.console import RenderableType

# Jobs that are shown. With more, the oldest ones are of interest.
MOST_SHOWN: Final = 10
REFRESHES_A_SEC: Final = 2


@contextmanager
def shown(worker: Worker) -> Iterator[None]:
    """Show at a terminal what ``worker`` runs, until the block ends."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield
        return
    from rich.console import Console
    from rich.live import Live

    terminal = sys.stderr
    live = Live(
        get_renderable=partial(_picture, worker),
        console=Console(file=terminal),
        refresh_per_second=REFRESHES_A_SEC,
        transient=True,
    )
    with live:
        handlers = [h for h in _stream_handlers() if h.stream is terminal]
        for handler in handlers:
            # Now what writes above the picture.
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            for handler in handlers:
                handler.setStream(terminal)


def _picture(worker: Worker) -> RenderableType:
    from rich.table import Table

    runs = sorted(worker.running(), key=lambda run: run.started_at)
    tally = worker.tally
    table = Table.grid(padding=(0, 2))
    table.add_row(
        f"{len(runs):,} running",
        f"{tally.succeeded:,} succeeded",
        f"{tally.failed:,} failed, {tally.lost:,} lost",
    )
    for run in runs[:MOST_SHOWN]:
        sec = local_clock() - run.started_at if run.started_at else 0.0
        table.add_row(f"{sec:,.0f} s", kind_of(run.lease), str(run.lease.pk))
    return table


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
    }
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
