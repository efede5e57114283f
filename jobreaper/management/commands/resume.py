"""``manage.py resume``: let the jobs of a paused stage or type run again."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from jobreaper.exceptions import UnknownTable
from jobreaper.models import Job
from jobreaper.pauses import resume
from jobreaper.tables import named

BAD_USAGE: Final = 2


class Command(BaseCommand):
    """Parses the arguments, resumes, prints."""

    help = "Let the jobs of a paused stage or type run again."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("name", help="the stage, or the type")
        parser.add_argument(
            "--table",
            default=Job._meta.db_table,
            metavar="T",
            help=f"the job table (default: {Job._meta.db_table})",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume."""
        try:
            [table] = named([options["table"]])
        except UnknownTable as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        resumed = resume(options["name"], model=table.model, by=getuser())
        was = "is resumed" if resumed else "was not paused"
        self.stdout.write(f"{options['name']} of {table.name} {was}")
