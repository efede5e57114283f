"""``manage.py reaper_sql``: the protocol as SQL functions and views, printed or installed."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandError
from django.db import ProgrammingError, connections, transaction

from jobreaper.db import in_words
from jobreaper.management.options import BAD_USAGE, OwnCommand, add_tables_option
from jobreaper.schema import functions
from jobreaper.tables import named


class Command(OwnCommand):
    """Renders the functions and views of the job tables."""

    help = (
        "Print the SQL functions and monitoring views of the job tables, or install them: after "
        "an upgrade, or when the policies in the settings have changed."
    )
    requires_system_checks = ("jobreaper",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--install", action="store_true", help="make them in the database")
        add_tables_option(parser)
        parser.add_argument("--database", choices=list(connections), default="default")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print or install."""
        connection = connections[options["database"]]
        tables = named(options["tables"])
        here = [table for table in tables if table.alias == connection.alias]
        if options["tables"] and here != tables:
            elsewhere = [f"{t.name} in {t.alias!r}" for t in tables if t not in here]
            problem = f"not in the database {connection.alias!r}: {', '.join(elsewhere)}"
            raise CommandError(f"{problem}; name theirs with --database", returncode=BAD_USAGE)
        made = functions.of_package(connection)
        for table in here:
            made += functions.of_table(table, connection)
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
