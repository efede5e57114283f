"""``manage.py prune``: delete finished jobs and records that are old enough."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from django.core.management.base import CommandError

from jobreaper.control.retention import DEFAULT_BATCH_SIZE, PruneResult, prune
from jobreaper.management.options import ERROR, CheckedCommand, add_batch_options

# As in shells: 128 plus the number of SIGINT.
STOPPED: Final = 130


class Command(CheckedCommand):
    """Parses the arguments, prunes, prints what was deleted."""

    help = (
        "Delete finished jobs, events, passes and workers that are older than RETENTION says. "
        "Exits with 0 when all went well, 1 when something went wrong, 2 on bad usage, "
        "130 when it was stopped by Ctrl-C."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="count, delete nothing")
        add_batch_options(parser, DEFAULT_BATCH_SIZE)

    def handle(self, *args: Any, **options: Any) -> None:
        """Prune."""
        so_far = PruneResult(dry_run=options["dry_run"])

        def note(table: str, deleted: int) -> None:
            so_far.deleted[table] = deleted
            if deleted and not so_far.dry_run and self.stderr.isatty():
                self._show_progress(table, deleted)

        try:
            result = prune(
                dry_run=options["dry_run"],
                batch_size=options["batch_size"],
                database=options["database"],
                progress=note,
            )
        except KeyboardInterrupt:
            so_far.errors.append("stopped")
            self._tell(so_far, options)
            raise CommandError("stopped", returncode=STOPPED) from None
        self._tell(result, options)
        if result.errors:
            raise CommandError("\n".join(result.errors), returncode=ERROR)

    def _tell(self, result: PruneResult, options: dict[str, Any]) -> None:
        if options["format"] == "json":
            self.stdout.write(
                json.dumps(
                    {
                        "deleted": result.deleted,
                        "dry_run": result.dry_run,
                        "errors": result.errors,
                    }
                )
            )
        else:
            self._print(result)

    def _show_progress(self, table: str, deleted: int) -> None:
        self.stderr.write(f"\r{table}: {deleted:,} deleted so far ", ending="")
        self.stderr.flush()

    def _print(self, result: PruneResult) -> None:
        would = "would be " if result.dry_run else ""
        for table, count in result.deleted.items():
            self.stdout.write(f"{table}: {count:,} {would}deleted")
