"""What several commands share: options, exit codes, the checks before them."""

from __future__ import annotations

import argparse
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import connections

from jobreaper import values
from jobreaper.exceptions import UnknownTable
from jobreaper.models import Job
from jobreaper.policies import LONGEST_MS
from jobreaper.tables import JobTable, named

ERROR: Final = 1
BAD_USAGE: Final = 2

LONGEST_SEC: Final = LONGEST_MS / 1000


class CheckedCommand(BaseCommand):
    """Runs the system checks first; what they find wrong is bad usage."""

    requires_system_checks = ("jobreaper",)

    def check(self, *args: Any, **options: Any) -> None:
        """Run the system checks."""
        try:
            super().check(*args, **options)
        except SystemCheckError as error:
            error.returncode = BAD_USAGE
            raise


def at_least_one(text: str) -> int:
    """Return the whole number that an option names, from 1 to ``values.MOST_ROWS``."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    if number > values.MOST_ROWS:
        raise argparse.ArgumentTypeError(f"it must be at most {values.MOST_ROWS}")
    return number


def name(text: str) -> str:
    """Return the name that an option gives. What is no UTF-8 on the command line cannot be one."""
    try:
        return values.name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Return the number of seconds that an option names."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not number > 0:
        raise argparse.ArgumentTypeError("it must be more than 0")
    if number > LONGEST_SEC:
        raise argparse.ArgumentTypeError("it must not be longer than a year")
    return number


def add_batch_options(parser: argparse.ArgumentParser, default_batch_size: int) -> None:
    """Declare the options of a command that goes through tables batch by batch."""
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=default_batch_size,
        metavar="N",
        help=f"rows a statement (default: {default_batch_size})",
    )
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument(
        "--database",
        choices=list(connections),
        metavar="ALIAS",
        help="the database that holds the tables (default: as Django's routers say)",
    )


def add_table_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names one job table."""
    parser.add_argument(
        "--table",
        default=Job._meta.db_table,
        metavar="T",
        help=f"the job table (default: {Job._meta.db_table})",
    )


def table_named(name: str) -> JobTable:
    """Return the job table of this name.

    Raises:
        CommandError: there is none.
    """
    try:
        [table] = named([name])
    except UnknownTable as error:
        raise CommandError(str(error), returncode=BAD_USAGE) from error
    return table
