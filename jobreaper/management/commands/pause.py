"""``manage.py pause``: stop claiming jobs of a stage or type; without a name, list the paused."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from jobreaper.exceptions import UnknownTable
from jobreaper.models import Job
from jobreaper.pauses import pause, paused
from jobreaper.tables import named

BAD_USAGE: Final = 2


class Command(BaseCommand):
    """Parses the arguments, pauses, prints."""

    help = "Claim and dispatch no job of a stage or type until it is resumed (manage.py resume)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "name", nargs="?", help="the stage, or the type; without it, list what is paused"
        )
        parser.add_argument(
            "--table",
            default=Job._meta.db_table,
            metavar="T",
            help=f"the job table (default: {Job._meta.db_table})",
        )
        parser.add_argument("--reason", help="why, for others to read")

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause or list."""
        try:
            [table] = named([options["table"]])
        except UnknownTable as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        if options["name"] is None:
            for found in paused(table.model):
                self.stdout.write(f"{found} since {found.at:%Y-%m-%d %H:%M}: {found.reason or ''}")
            return
        is_new = pause(options["name"], model=table.model, by=getuser(), reason=options["reason"])
        was = "is paused" if is_new else "was paused already"
        self.stdout.write(f"{options['name']} of {table.name} {was}")
