"""``manage.py pause``: claim no jobs of a stage, type or queue; without one, list the pauses."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any

from jobreaper.control.pauses import pause, paused
from jobreaper.management.options import OwnCommand, add_table_option, name, table_named


class Command(OwnCommand):
    """Parses the arguments, pauses, prints."""

    help = "Claim and dispatch no job of a stage, type or queue until manage.py resume."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "name",
            type=name,
            nargs="?",
            help="the stage, the type, or queue:NAME; without it, list what is paused",
        )
        add_table_option(parser)
        parser.add_argument("--reason", help="why, for others to read")

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause or list."""
        table = table_named(options["table"])
        if options["name"] is None:
            for found in paused(table.model):
                self.stdout.write(f"{found} since {found.at:%Y-%m-%d %H:%M}: {found.reason or ''}")
            return
        is_new = pause(options["name"], model=table.model, by=getuser(), reason=options["reason"])
        was = "is paused" if is_new else "was paused already"
        self.stdout.write(f"{options['name']} of {table.name} {was}")
