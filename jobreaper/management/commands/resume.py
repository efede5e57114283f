"""``manage.py resume``: let the jobs of a paused stage or type run again."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any

from django.core.management.base import BaseCommand

from jobreaper.management.options import add_table_option, name, table_named
from jobreaper.pauses import resume


class Command(BaseCommand):
    """Parses the arguments, resumes, prints."""

    help = "Let the jobs of a paused stage or type run again."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("name", type=name, help="the stage, or the type")
        add_table_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume."""
        table = table_named(options["table"])
        resumed = resume(options["name"], model=table.model, by=getuser())
        was = "is resumed" if resumed else "was not paused"
        self.stdout.write(f"{options['name']} of {table.name} {was}")
