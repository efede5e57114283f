"""``manage.py resume``: end the pause of a stage, type or queue."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any

from jobreaper.control.pauses import resume
from jobreaper.management.options import OwnCommand, add_table_option, name, table_named


class Command(OwnCommand):
    """Parses the arguments, resumes, prints."""

    help = "Let the jobs of a paused stage, type or queue run again."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("name", type=name, help="the stage, the type, or queue:NAME")
        add_table_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume."""
        table = table_named(options["table"])
        resumed = resume(options["name"], model=table.model, by=getuser())
        was = "is resumed" if resumed else "was not paused"
        self.stdout.write(f"{options['name']} of {table.name} {was}")
