"""``InstallSQL``: the SQL functions and views of a job table."""

from __future__ import annotations

from django.apps import apps
from django.core.management.base import CommandError
from django.db import transaction

from jobreaper.operations.of_table import OfTable, Place
from jobreaper.schema import functions, migrating
from jobreaper.schema.objects import NotAllowed
from jobreaper.tables import JobTable, table_of


class InstallSQL(OfTable):
    """Install the SQL functions and monitoring views of one job table.

    The functions are for workers in any language, the views show which jobs are stuck. Both are
    rendered from the installed version of this package, so run ``manage.py reaper_sql --install``
    after an upgrade. A check says when this is necessary.

    They always match the current model. If a later migration gives the table its current name or
    columns, they are created at the end of ``migrate``. If the model no longer exists, they are not
    created.
    """

    reduces_to_sql = False

    def _make(self, place: Place) -> None:
        """Create the package's functions, then the table's functions and views if the table is
        ready.
        """
        connection = place.schema_editor.connection
        with transaction.atomic(using=connection.alias):
            # A later migration of this package may create a table that its functions already use.
            place.schema_editor.execute("SET LOCAL check_function_bodies = off")
            try:
                for made in functions.of_package(connection):
                    made.create(connection)
                for table in self._tables(place.app_label):
                    migrating.create_when_ready(table, connection)
            # `migrate` shows this one without a traceback.
            except NotAllowed as error:
                raise CommandError(str(error)) from error

    def _drop(self, place: Place) -> None:
        """Drop the table's functions and views; other tables may need the package's."""
        connection = place.schema_editor.connection
        for table in self._tables(place.app_label):
            for made in reversed(functions.of_table(table, connection)):
                made.drop(connection)

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Install the job functions and views of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_sql"

    def _tables(self, app_label: str) -> list[JobTable]:
        # The registry contains the current model, not the one in this migration's state, which may
        # have been renamed or deleted since.
        try:
            return [table_of(apps.get_model(app_label, self.model_name))]
        except LookupError:
            return []
