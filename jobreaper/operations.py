"""Operations for the migrations of a project that uses this package."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from jobreaper import installed
from jobreaper.tables import table_of


class InstallSQL(Operation):
    """Install the SQL functions and monitoring views of one job table.

    The functions let workers in any language take part, the views show what is stuck. Both are
    rendered from the installed version of this package, so after an upgrade run ``manage.py
    reaper_sql --install``; a check says when that is due.
    """

    reversible = True
    reduces_to_sql = False

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: Django has no state for functions and views."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Make the policies' function, then the table's functions and views."""
        if self._applies(app_label, schema_editor, to_state):
            installed.policies(schema_editor.connection).create(schema_editor.connection)
            for made in self._of_table(app_label, schema_editor):
                made.create(schema_editor.connection)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the table's functions and views; other tables may need the policies' function."""
        if self._applies(app_label, schema_editor, from_state):
            for made in reversed(self._of_table(app_label, schema_editor)):
                made.drop(schema_editor.connection)

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Install the job functions and views of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_sql"

    def _applies(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState
    ) -> bool:
        model = state.apps.get_model(app_label, self.model_name)
        return self.allow_migrate_model(schema_editor.connection.alias, model)

    def _of_table(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> list[Any]:
        # The registry knows the model of today and not the one of this migration's state.
        table = table_of(apps.get_model(app_label, self.model_name))
        return installed.of_table(table, schema_editor.connection)
