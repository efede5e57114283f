"""``manage.py run_now``: make jobs due at once that are queued for later."""

from __future__ import annotations

import argparse
from getpass import getuser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from jobreaper.control import run_now
from jobreaper.management.options import (
    BAD_USAGE,
    ERROR,
    OwnCommand,
    add_table_option,
    table_named,
)


class Command(OwnCommand):
    """Parses the arguments, makes the jobs due, prints their keys."""

    help = "Make jobs due at once that are scheduled for later or wait for their next attempt."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("keys", nargs="+", metavar="KEY", help="the key of a job")
        add_table_option(parser)
        parser.add_argument("--reason", help="why, for others to read")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them due."""
        table = table_named(options["table"])
        keys = options["keys"]
        try:
            changed = run_now(table.model, keys, by=getuser(), reason=options["reason"])
        except (ValueError, ValidationError) as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        for key in changed:
            self.stdout.write(f"{key} is due now")
        if len(changed) < len(set(keys)):
            left = len(set(keys)) - len(changed)
            raise CommandError(f"{left:,} left: not queued for later", returncode=ERROR)
