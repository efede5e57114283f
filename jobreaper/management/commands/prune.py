"""``manage.py prune``: delete finished jobs, events and passes past their age."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from jobreaper.exceptions import ConfigurationError, UnsupportedDatabase
from jobreaper.retention import DEFAULT_BATCH_SIZE, PruneResult, prune

ERROR: Final = 1
BAD_USAGE: Final = 2


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


class Command(BaseCommand):
    """Parses the arguments, prunes, prints what was deleted."""

    help = (
        "Delete finished jobs, events and passes that are older than RETENTION says. "
        "Exits with 0 when all went well, 1 when something went wrong, 2 on bad usage."
    )
    requires_system_checks = ("jobreaper",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="count, delete nothing")
        parser.add_argument(
            "--batch-size",
            type=_at_least_one,
            default=DEFAULT_BATCH_SIZE,
            metavar="N",
            help=f"rows a statement (default: {DEFAULT_BATCH_SIZE})",
        )
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument(
            "--database",
            choices=list(connections),
            metavar="ALIAS",
            help="the database that holds the tables (default: as Django's routers say)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prune."""
        try:
            result = prune(
                dry_run=options["dry_run"],
                batch_size=options["batch_size"],
                database=options["database"],
                progress=self._show_progress if self.stderr.isatty() else None,
            )
        except (UnsupportedDatabase, ConfigurationError) as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
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
        if result.errors:
            raise CommandError("\n".join(result.errors), returncode=ERROR)

    def _show_progress(self, table: str, deleted: int) -> None:
        self.stderr.write(f"\r{table}: {deleted:,} deleted so far ", ending="")
        self.stderr.flush()

    def _print(self, result: PruneResult) -> None:
        would = "would be " if result.dry_run else ""
        for table, count in result.deleted.items():
            self.stdout.write(f"{table}: {count:,} {would}deleted")
