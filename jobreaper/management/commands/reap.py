"""``manage.py reap``: one pass, or one pass after another."""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import time
from typing import Any, Final

from django.core.management.base import CommandError

from jobreaper import conf, presence
from jobreaper.db import without_details
from jobreaper.management.options import (
    ERROR,
    MISUSE,
    CheckedCommand,
    add_batch_options,
    add_tables_option,
)
from jobreaper.management.watching import watch
from jobreaper.reaper import DEFAULT_BATCH_SIZE, PassResult, reap
from jobreaper.redisq import configured as redisq
from jobreaper.redisq.results import PassResult as QueueResult
from jobreaper.states import Trigger
from jobreaper.tables.refused import Refused

logger = logging.getLogger(__name__)

# Reapers started by one deploy must not all wake in the same second.
JITTER: Final = 0.1

# psycopg waits ten seconds for a server that does not answer to cancel its statement. A pass may be
# interrupted anywhere, so this process does not wait.
PATIENCE_SEC: Final = 0.8


class Command(CheckedCommand):
    """Parses the arguments, runs the passes, prints what they did."""

    help = (
        "Give jobs whose lease ran out back to the queue, or fail those with no attempt left. "
        "Exits with 0 when all went well, 1 when something in the pass went wrong, 2 on bad usage."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        how_often = parser.add_mutually_exclusive_group()
        how_often.add_argument("--once", action="store_true", help="run one pass (the default)")
        how_often.add_argument(
            "--loop",
            action="store_true",
            help="run a pass every REAPER_INTERVAL_SEC until SIGTERM or Ctrl-C",
        )
        how_often.add_argument(
            "--watch",
            action="store_true",
            help="run no pass; show how everything stands, until Ctrl-C (needs rich)",
        )
        add_tables_option(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="show the verdicts, change nothing"
        )
        add_batch_options(parser, DEFAULT_BATCH_SIZE)
        parser.add_argument(
            "--no-hold",
            action="store_false",
            dest="hold",
            help="reap even in the grace after PostgreSQL came up or many workers fell silent",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the passes, or watch."""
        if options["watch"]:
            watch(options["tables"], stdout=self.stdout, once=not self.stdout.isatty())
            return
        if options["loop"]:
            self._loop(options)
            return
        errors = self._pass(options)
        if not options["dry_run"] and (taken := presence.look_once()):
            self.stderr.write(f"{taken:,} taken back from workers that are gone")
        if errors:
            raise CommandError("\n".join(errors), returncode=ERROR)

    def _loop(self, options: dict[str, Any]) -> None:
        signal.signal(signal.SIGTERM, _interrupt)
        presence.watch()
        try:
            while True:
                started = time.monotonic()
                try:
                    for said in self._pass(options):
                        self.stderr.write(self.style.ERROR(said))
                except MISUSE:
                    raise
                # Whatever it is, the next pass may succeed, and nothing else would reap.
                except Exception as error:
                    logger.error(
                        "pass failed; the next one goes on", exc_info=without_details(error)
                    )
                interval = conf.settings().reaper_interval_sec * random.uniform(1 - JITTER, 1)
                time.sleep(max(0.0, started + interval - time.monotonic()))
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.stderr.write("stopped")

    def _pass(self, options: dict[str, Any]) -> list[str]:
        """Run one pass and print what it did; return what went wrong."""
        result = reap(
            options["tables"],
            dry_run=options["dry_run"],
            batch_size=options["batch_size"],
            hold=options["hold"],
            database=options["database"],
            trigger=Trigger.COMMAND,
            progress=self._show_progress if self.stderr.isatty() else None,
        )
        # A dry run or a pass over certain tables is not about the Redis queue.
        whole = not (options["dry_run"] or options["tables"])
        queue = redisq.reap(hold=options["hold"]) if whole else None
        if options["format"] == "json":
            said = _as_dict(result) | ({"redis_queue": queue.as_dict()} if queue else {})
            self.stdout.write(json.dumps(said, default=str))
        else:
            self._print(result)
            self._print_queue(queue)
        self.stdout.flush()
        return [*result.all_errors, *(queue.errors if queue else [])]

    def _print_queue(self, queue: QueueResult | None) -> None:
        if queue is None:
            return
        if queue.held_reason is not None:
            self.stdout.write(self.style.WARNING(f"Redis queue held: {queue.held_reason}"))
        elif queue.requeued or queue.dead_lettered:
            self.stdout.write(
                f"Redis queue: {queue.requeued:,} requeued, {queue.dead_lettered:,} dead letters"
            )
        elif not queue.errors:
            self.stdout.write("nothing to reap in the Redis queue")

    def _show_progress(self, table: str, reaped: int) -> None:
        self.stderr.write(f"\r{table}: {reaped:,} reaped so far ", ending="")
        self.stderr.flush()

    def _print(self, result: PassResult) -> None:
        if result.held_reason is not None:
            self.stdout.write(self.style.WARNING(f"held: {result.held_reason}"))
        would = "would be " if result.dry_run else ""
        for name, table in result.tables.items():
            if table.requeued or table.failed:
                self.stdout.write(
                    f"{name}: {len(table.requeued):,} {would}requeued, "
                    f"{len(table.failed):,} {would}failed"
                )
            if table.refused.total:
                self.stdout.write(self.style.WARNING(f"{name}: {_in_words(table.refused)}"))
        if result.held:
            return
        clean = [name for name, table in result.tables.items() if not table.errors]
        if not (result.requeued or result.failed or result.errors) and (clean or not result.tables):
            self.stdout.write(f"nothing to reap in {', '.join(clean) or 'no tables'}")
        self.stdout.write(f"took {result.duration_ms:.0f} ms")


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SEC)
    # The error after Ctrl-C, because psycopg then cancels its statement.
    raise KeyboardInterrupt


def _in_words(refused: Refused) -> str:
    rows = [
        f"{row.key} ({row.error}, {row.tries:,} {'try' if row.tries == 1 else 'tries'}, "
        f"again at {row.next_try_at:%Y-%m-%d %H:%M:%S%z})"
        for row in refused.rows
    ]
    more = refused.total - len(rows)
    rows += [f"and {more:,} more"] if more else []
    be = "row cannot" if refused.total == 1 else "rows cannot"
    return f"{refused.total:,} {be} be written: {', '.join(rows)}"


def _as_dict(result: PassResult) -> dict[str, Any]:
    return {
        "tables": {
            name: {"requeued": table.requeued, "failed": table.failed}
            for name, table in result.tables.items()
        },
        "requeued": result.requeued,
        "failed": result.failed,
        "refused": result.refused,
        "refused_rows": {
            name: [row.as_dict() for row in table.refused.rows]
            for name, table in result.tables.items()
            if table.refused.total
        },
        "held": result.held,
        "held_reason": result.held_reason,
        "dry_run": result.dry_run,
        "errors": result.all_errors,
        "duration_ms": round(result.duration_ms, 1),
    }
