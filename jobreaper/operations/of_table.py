"""An operation on the table of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.db import NotSupportedError, models, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from jobreaper.schema.live_table import LiveTable


@dataclass(frozen=True)
class Place:
    """The table that an operation is for: its model, and the project without the operation."""

    app_label: str
    schema_editor: BaseDatabaseSchemaEditor
    model: type[models.Model]
    without: ProjectState


class OfTable(Operation):
    """An operation that makes something for the table of one model, and drops it again."""

    reversible = True

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: Django has no state for what is made."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Make it, unless a router keeps the table out of the database."""
        self._run(self._make, app_label, schema_editor, to_state, from_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop it."""
        self._run(self._drop, app_label, schema_editor, from_state, to_state)

    def _run(
        self,
        change: Callable[[Place], None],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        having: ProjectState,
        without: ProjectState,
    ) -> None:
        model = having.apps.get_model(app_label, self.model_name)
        # Django's allow_migrate_model() returns False for an unmanaged model, but its table is
        # supported here.
        if router.allow_migrate_model(schema_editor.connection.alias, model):
            change(Place(app_label, schema_editor, model, without))

    def _make(self, place: Place) -> None:
        raise NotImplementedError

    def _drop(self, place: Place) -> None:
        raise NotImplementedError

    def _live_table(
        self, place: Place, indexes_of: Callable[[str], list[models.Index]]
    ) -> LiveTable:
        """Return the table, for an operation that builds indexes.

        Raises:
            NotSupportedError: the migration runs in a transaction.
        """
        if place.schema_editor.connection.in_atomic_block:
            raise NotSupportedError(
                f"{type(self).__name__} builds indexes concurrently, which PostgreSQL does not do "
                "in a transaction: set atomic = False on the migration"
            )
        return LiveTable(place.schema_editor, place.model, indexes_of)
