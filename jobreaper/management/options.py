"""Shared by several commands: options, exit codes, and running the checks first."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import Error, connections

from jobreaper import values
from jobreaper.db import in_words, without_details
from jobreaper.exceptions import (
    ConfigurationError,
    NotLeasable,
    UnknownSchedule,
    UnknownTable,
    UnsupportedDatabase,
)
from jobreaper.models import Job
from jobreaper.policies import LONGEST_MS
from jobreaper.tables import JobTable, named

ERROR: Final = 1
BAD_USAGE: Final = 2

LONGEST_SEC: Final = LONGEST_MS / 1000


# What a command was asked to do cannot be done as things are declared and set.
MISUSE: Final = (
    UnknownTable,
    UnknownSchedule,
    NotLeasable,
    UnsupportedDatabase,
    ConfigurationError,
)


class OwnCommand(BaseCommand):
    """Says in one line that it is misused, or what the database refuses: a traceback would quote
    rows.
    """

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command."""
        try:
            return super().execute(*args, **options)
        except MISUSE as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        except Error as error:
            raise CommandError(in_words(error), returncode=ERROR) from without_details(error)


class CheckedCommand(OwnCommand):
    """Runs the system checks first; an error counts as bad usage."""

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
    """Return the name that an option gives. It has to be UTF-8 on the command line."""
    try:
        return values.short_name(text)
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


def duration(text: str) -> float:
    """Return the seconds that an option gives as a number, or as text such as ``10m``."""
    try:
        return values.parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    """Return the bytes that an option gives as a number, or as text such as ``512M`` or ``2G``."""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 2G")
    return int(found[1]) << 10 * " KMG".index(found[2].upper() or " ")


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of text such as ``0.0.0.0:8001`` or ``[::]:8001``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as 0.0.0.0:8001")
    return host.removeprefix("[").removesuffix("]"), int(port)


def add_batch_options(parser: argparse.ArgumentParser, default_batch_size: int) -> None:
    """Declare the options of a command that processes tables in batches."""
    parser.add_argument(
        "--batch-size",
        type=at_least_one,
        default=default_batch_size,
        metavar="N",
        help=f"rows a statement (default: {default_batch_size})",
    )
    add_format_option(parser)
    parser.add_argument(
        "--database",
        choices=list(connections),
        metavar="ALIAS",
        help="the database that holds the tables (default: as Django's routers say)",
    )


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that chooses between text and JSON."""
    parser.add_argument("--format", choices=["text", "json"], default="text")


def add_tables_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names some job tables."""
    parser.add_argument(
        "--table",
        action="append",
        metavar="T",
        dest="tables",
        help="only this job table; may be given several times (default: all)",
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
        UnknownTable: there is none.
    """
    [table] = named([name])
    return table
