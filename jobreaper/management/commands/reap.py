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

from jobreaper import conf
from jobreaper.exceptions import ConfigurationError, UnknownTable, UnsupportedDatabase
from jobreaper.management.options import BAD_USAGE, ERROR, CheckedCommand, add_batch_options
from jobreaper.reaper import DEFAULT_BATCH_SIZE, PassResult, reap
from jobreaper.states import Trigger

logger = logging.getLogger(__name__)

# Reapers started by one deploy must not all wake in the same second.
JITTER: Final = 0.1

# psycopg gives a server that does not answer ten seconds to cancel its statement. A pass may be cut
# off anywhere, so this process does not wait for that.
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
        parser.add_argument(
            "--table",
            action="append",
            metavar="T",
            dest="tables",
            help="only this job table; may be given several times (default: all)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the verdicts, change nothing"
        )
        add_batch_options(parser, DEFAULT_BATCH_SIZE)
        parser.add_argument(
            "--no-hold",
            action="store_false",
            dest="hold",
            help="reap even in the grace after PostgreSQL came up",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the passes."""
        if options["loop"]:
            self._loop(options)
            return
        result = self._pass(options)
        if result.all_errors:
            raise CommandError("\n".join(result.all_errors), returncode=ERROR)

    def _loop(self, options: dict[str, Any]) -> None:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            while True:
                started = time.monotonic()
                try:
                    result = self._pass(options)
                    for error in result.all_errors:
                        self.stderr.write(self.style.ERROR(error))
                except CommandError:
                    raise
                # Whatever it is, the next pass may be spared it, and no one else would reap.
                except Exception:
                    logger.exception("pass failed; the next one goes on")
                interval = conf.settings().reaper_interval_sec * random.uniform(1 - JITTER, 1)
                time.sleep(max(0.0, started + interval - time.monotonic()))
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.stderr.write("stopped")

    def _pass(self, options: dict[str, Any]) -> PassResult:
        try:
            result = reap(
                options["tables"],
                dry_run=options["dry_run"],
                batch_size=options["batch_size"],
                hold=options["hold"],
                database=options["database"],
                trigger=Trigger.COMMAND,
                progress=self._show_progress if self.stderr.isatty() else None,
            )
        except (UnknownTable, UnsupportedDatabase, ConfigurationError) as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        if options["format"] == "json":
            self.stdout.write(json.dumps(_as_dict(result), default=str))
        else:
            self._print(result)
        self.stdout.flush()
        return result

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
        if result.held:
            return
        clean = [name for name, table in result.tables.items() if not table.errors]
        if not (result.requeued or result.failed or result.errors) and (clean or not result.tables):
            self.stdout.write(f"nothing to reap in {', '.join(clean) or 'no tables'}")
        self.stdout.write(f"took {result.duration_ms:.0f} ms")


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SEC)
    # What Ctrl-C raises, since psycopg cancels the statement it waits for on that.
    raise KeyboardInterrupt


def _as_dict(result: PassResult) -> dict[str, Any]:
    return {
        "tables": {
            name: {"requeued": table.requeued, "failed": table.failed}
            for name, table in result.tables.items()
        },
        "requeued": result.requeued,
        "failed": result.failed,
        "held": result.held,
        "held_reason": result.held_reason,
        "dry_run": result.dry_run,
        "errors": result.all_errors,
        "duration_ms": round(result.duration_ms, 1),
    }
