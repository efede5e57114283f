"""``manage.py reaper_sql``: the protocol as SQL functions and views, printed or installed."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import ProgrammingError, connections, transaction

from jobreaper import installed
from jobreaper.db import in_words
from jobreaper.exceptions import UnknownTable
from jobreaper.tables import named


class Command(BaseCommand):
    """Renders the functions and views of the job tables."""

    help = (
        "Print the SQL functions and monitoring views of the job tables, or install them: after "
        "an upgrade, or when the policies in the settings have changed."
    )
    requires_system_checks = ("jobreaper",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--install", action="store_true", help="make them in the database")
        parser.add_argument(
            "--table",
            action="append",
            metavar="T",
            dest="tables",
            help="only this job table; may be given several times (default: all)",
        )
        parser.add_argument("--database", choices=list(connections), default="default")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print or install."""
        connection = connections[options["database"]]
        try:
            tables = named(options["tables"])
        except UnknownTable as error:
            raise CommandError(str(error), returncode=2) from error
        here = [table for table in tables if table.alias == connection.alias]
        if options["tables"] and here != tables:
            elsewhere = [f"{t.name} in {t.alias!r}" for t in tables if t not in here]
            problem = f"not in the database {connection.alias!r}: {', '.join(elsewhere)}"
            raise CommandError(f"{problem}; name theirs with --database", returncode=2)
        made = [installed.policies(connection)]
        for table in here:
            made += installed.of_table(table, connection)
        if not options["install"]:
            self.stdout.writelines(f"{line};\n" for each in made for line in each.statements)
            return
        with transaction.atomic(using=connection.alias):
            for each in made:
                try:
                    each.create(connection)
                except ProgrammingError as error:
                    raise CommandError(f"{each.name}: {in_words(error)}") from error
        self.stdout.writelines(f"installed {each.kind.lower()} {each.name}\n" for each in made)
