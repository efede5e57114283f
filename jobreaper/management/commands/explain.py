"""``manage.py explain``: why a job waits, stands still or has ended."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import models

from jobreaper.explaining import explain
from jobreaper.management.options import (
    BAD_USAGE,
    ERROR,
    OwnCommand,
    add_format_option,
    add_table_option,
    table_named,
)
from jobreaper.tables import JobTable


class Command(OwnCommand):
    """Parses the arguments, prints the explanation."""

    help = (
        "Say why a job waits, stands still or has ended, attempt by attempt, and what would change "
        "that. Changes nothing. Exits with 0, or with 1 where there is no such job."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("job", metavar="JOB", help="the job's key")
        add_table_option(parser)
        add_format_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Explain the job."""
        table = table_named(options["table"])
        job = job_with_key(table, options["job"])
        found = explain(job)
        if options["format"] == "json":
            self.stdout.write(json.dumps(found.as_dict(), default=str))
        else:
            self.stdout.write(str(found))


def job_with_key(table: JobTable, key: str) -> models.Model:
    """Return an instance of the table's model with only this key, which is not read.

    Raises:
        CommandError: it cannot be a key of the table, or no job has it.
    """
    try:
        table.prepare_pk(key)
        manager = table.model._base_manager.using(table.alias)
        found = manager.filter(pk=table.pk.to_python(key)).only("pk").first()
    except (ValueError, TypeError, ValidationError) as error:
        raise CommandError(f"{key!r} is no key of {table.name}", returncode=BAD_USAGE) from error
    if found is None:
        raise CommandError(f"{table.name} has no job {key}", returncode=ERROR)
    return found
