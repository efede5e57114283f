"""Operations for the migrations of a project that uses this package."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.apps import apps
from django.db import NotSupportedError, OperationalError, models, router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from jobreaper import installed
from jobreaper.base import LeasedJob, lease_indexes
from jobreaper.tables import table_of

logger = logging.getLogger(__name__)

# ALTER TABLE waits for every transaction that uses the table, and everything after it waits for
# the ALTER TABLE: so it waits briefly, lets traffic through, and tries again.
LOCK_TIMEOUT: Final = "2s"
TRIES: Final = 30
WAIT_SEC: Final = 1.0


class AddLeaseColumns(Operation):
    """Make a large table under traffic a job table: add the lease columns that it lacks and their
    indexes.

    The columns are nullable or have a constant default, so no row is rewritten; all are added by
    one statement that waits two seconds for its lock and is tried again. The indexes are built
    concurrently. Old code goes on inserting and updating meanwhile. The migration must have
    ``atomic = False``. Run again after an interruption, it goes on where it stopped.
    """

    reversible = True
    reduces_to_sql = False

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the fields and indexes to the model."""
        model_state = state.models[app_label, self.model_name.lower()]
        for field in LeasedJob._meta.local_fields:
            if field.name not in model_state.fields:
                state.add_field(app_label, self.model_name.lower(), field.name, field.clone(), True)
        model = state.apps.get_model(app_label, self.model_name)
        for index in _indexes(model):
            if index.name not in [own.name for own in model_state.options.get("indexes", [])]:
                state.add_index(app_label, self.model_name.lower(), index)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Add the columns, then build the indexes."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        _refuse_transaction(schema_editor)
        new = self._new_fields(app_label, from_state, model)
        columns = []
        defaults: list[Any] = []
        for field in new:
            definition, params = schema_editor.column_sql(model, field)
            column = schema_editor.quote_name(str(field.column))
            columns.append(f"ADD COLUMN IF NOT EXISTS {column} {definition}")
            defaults += params or ()
        _alter(schema_editor, model, columns, defaults)
        for index in _indexes(model):
            _drop_unless_valid(schema_editor, model, index)
            statement = index.create_sql(model, schema_editor, concurrently=True)
            schema_editor.execute(
                str(statement).replace("CONCURRENTLY", "CONCURRENTLY IF NOT EXISTS", 1), params=None
            )

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the indexes, then the columns that the operation added."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        _refuse_transaction(schema_editor)
        for index in _indexes(model):
            schema_editor.execute(index.remove_sql(model, schema_editor, concurrently=True))
        quote = schema_editor.quote_name
        columns = [
            f"DROP COLUMN IF EXISTS {quote(str(field.column))}"
            for field in self._new_fields(app_label, to_state, model)
        ]
        _alter(schema_editor, model, columns)

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Add the lease columns and indexes to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_leases"

    def _new_fields(
        self, app_label: str, without: ProjectState, model: type[models.Model]
    ) -> list[models.Field[Any, Any]]:
        had = without.models[app_label, self.model_name.lower()].fields
        return [
            model._meta.get_field(field.name)  # type: ignore[misc]
            for field in LeasedJob._meta.local_fields
            if field.name not in had
        ]


def _indexes(model: type[models.Model]) -> list[models.Index]:
    has_priority = any(field.name == "priority" for field in model._meta.local_fields)
    return lease_indexes(model._meta.db_table, model._meta.pk.name, has_priority=has_priority)


def _refuse_transaction(schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.in_atomic_block:
        raise NotSupportedError(
            "AddLeaseColumns builds indexes concurrently, which PostgreSQL does not do in a "
            "transaction: set atomic = False on the migration"
        )


def _alter(
    schema_editor: BaseDatabaseSchemaEditor,
    model: type[models.Model],
    changes: Iterable[str],
    params: Sequence[Any] = (),
) -> None:
    table = schema_editor.quote_name(model._meta.db_table)
    statement = f"ALTER TABLE {table} {', '.join(changes)}"
    for _ in range(TRIES - 1):
        try:
            _alter_once(schema_editor, statement, params)
        except OperationalError as error:
            logger.info("waiting for a lock on %s: %s", model._meta.db_table, error)
            time.sleep(WAIT_SEC * random.uniform(0.5, 1.5))
        else:
            return
    _alter_once(schema_editor, statement, params)


def _alter_once(
    schema_editor: BaseDatabaseSchemaEditor, statement: str, params: Sequence[Any]
) -> None:
    with transaction.atomic(using=schema_editor.connection.alias):
        schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        schema_editor.execute(statement, params)


def _drop_unless_valid(
    schema_editor: BaseDatabaseSchemaEditor, model: type[models.Model], index: models.Index
) -> None:
    """Drop what an interrupted concurrent build has left: IF NOT EXISTS would take it for done."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indrelid = %s::regclass AND relname = %s AND NOT indisvalid",
            [schema_editor.quote_name(model._meta.db_table), index.name],
        )
        left = cursor.fetchone()
    if left:
        schema_editor.execute(
            f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(index.name)}"
        )


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
        if not self._applies(app_label, schema_editor, to_state):
            return
        connection = schema_editor.connection
        with transaction.atomic(using=connection.alias):
            # A later migration of this package may make a table that its functions already name.
            schema_editor.execute("SET LOCAL check_function_bodies = off")
            for made in [installed.policies(connection), *self._of_table(app_label, schema_editor)]:
                made.create(connection)

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
        # Django's allow_migrate_model() says no for an unmanaged model, and the table of one is as
        # welcome here as any other.
        model = state.apps.get_model(app_label, self.model_name)
        return router.allow_migrate_model(schema_editor.connection.alias, model)

    def _of_table(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> list[Any]:
        # The registry knows the model of today and not the one of this migration's state.
        table = table_of(apps.get_model(app_label, self.model_name))
        return installed.of_table(table, schema_editor.connection)
