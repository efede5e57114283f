"""Operations for the migrations of a project that uses this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import compress
from typing import Any, Final

from django.apps import apps
from django.db import NotSupportedError, models, router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from jobreaper import installed
from jobreaper.base import LeasedJob, lease_indexes
from jobreaper.exceptions import ConfigurationError, NotLeasable
from jobreaper.livetable import LiveTable
from jobreaper.tables import JobTable, table_of

# What the operation adds is settled for good: migrations that have run are read anew by every later
# version of this package. What LeasedJob gains later is for makemigrations to find.
COLUMNS: Final = frozenset(
    {
        "status",
        "stage",
        "locked_by",
        "claimed_at",
        "lease_expires_at",
        "last_heartbeat_at",
        "lease_epoch",
        "attempt_count",
        "max_attempts",
        "reap_count",
        "next_earliest_run_at",
        "expected_duration_ms",
        "deadline_at",
        "finished_at",
        "dispatched_at",
        "fail_code",
        "fail_reason",
    }
)
INDEXES: Final = ("status_lease", "queued_due", "queued_priority")


class AddLeaseColumns(Operation):
    """Make a large table under traffic a job table: add the lease columns that it lacks and their
    indexes.

    The columns are nullable or have a constant default, so no row is rewritten; all are added by
    one statement that waits two seconds for its lock and is tried again. The indexes are built
    concurrently, those of a partitioned table partition by partition. Old code goes on inserting
    and updating meanwhile. The migration must have ``atomic = False``. Run again after an
    interruption, it goes on where it stopped. Undone, it drops the columns that it added, which it
    knows by their comments, and no others.
    """

    reversible = True

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the fields and indexes to the model."""
        model_state = state.models[app_label, self.model_name.lower()]
        for field in LeasedJob._meta.local_fields:
            if field.name in COLUMNS - model_state.fields.keys():
                state.add_field(app_label, self.model_name.lower(), field.name, field.clone(), True)
        model = state.apps.get_model(app_label, self.model_name)
        for index in _indexes_of(model, model_state.options)(model._meta.db_table):
            state.add_index(app_label, self.model_name.lower(), index)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Add the columns, then build the indexes.

        Raises:
            ConfigurationError: the table has such columns that the model does not declare.
            NotLeasable: the key is composite.
            NotSupportedError: the migration runs in a transaction.
        """
        model = to_state.apps.get_model(app_label, self.model_name)
        if not _applies(model, schema_editor):
            return
        job_table = JobTable(model=model)
        if job_table.has_composite_key:
            raise NotLeasable(job_table.name, ())
        table = self._live_table(app_label, schema_editor, from_state, model)
        there = table.columns()
        new = self._new_fields(app_label, from_state, model)
        self._refuse_strangers(app_label, from_state, job_table, there, new)
        definitions = {}
        defaults: list[Any] = []
        for column, field in new.items():
            if column not in there:
                definition, params = schema_editor.column_sql(model, field)
                definitions[column] = str(definition)
                defaults += params or ()
        table.add_columns(definitions, defaults, self._mark(app_label))
        table.build_indexes()

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the indexes, then the columns that the operation added."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if not _applies(model, schema_editor):
            return
        table = self._live_table(app_label, schema_editor, to_state, model)
        there = table.columns()
        table.drop_indexes()
        new = self._new_fields(app_label, to_state, model)
        table.drop_columns([name for name in new if there.get(name) == self._mark(app_label)])

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Add the lease columns and indexes to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_leases"

    def _new_fields(
        self, app_label: str, without: ProjectState, model: type[models.Model]
    ) -> dict[str, models.Field[Any, Any]]:
        """Return the fields that the operation gives the model, by column."""
        had = without.models[app_label, self.model_name.lower()].fields
        return {
            str(field.column): field
            for field in model._meta.local_fields
            if field.name in COLUMNS - had.keys()
        }

    def _mark(self, app_label: str) -> str:
        """Return the comment of a column that this operation has added."""
        return f"Added by AddLeaseColumns to {app_label}.{self.model_name}"

    def _refuse_strangers(
        self,
        app_label: str,
        without: ProjectState,
        table: JobTable,
        there: Mapping[str, str | None],
        new: Collection[str],
    ) -> None:
        """Refuse a table that has a column which is to be added, and which this operation has not
        added. It may hold something else that the protocol would overwrite.
        """
        before = without.apps.get_model(app_label, self.model_name)
        declared = {own.column: own.name for own in before._meta.local_concrete_fields}
        columns = set(new)
        problems = [
            f"its field {declared[column]!r} has the column {column!r}: rename the field to "
            f"{column!r} before (by RenameField, which changes nothing in the database)"
            for column in sorted(columns & declared.keys())
        ]
        mark = self._mark(app_label)
        strangers = {
            column for column in columns - declared.keys() if there.get(column, mark) != mark
        }
        if strangers:
            problems.append(
                f"the table has columns that the model does not declare: "
                f"{', '.join(sorted(strangers))}: if they mean what LeasedJob's do, declare them "
                "before (AddField among the state_operations of a SeparateDatabaseAndState); "
                "otherwise rename them, or adopt the table with register()"
            )
        if problems:
            raise ConfigurationError(
                f"cannot add lease columns to {table.name}: {'; '.join(problems)}; "
                "see docs/adoption.md"
            )

    def _live_table(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        without: ProjectState,
        model: type[models.Model],
    ) -> LiveTable:
        if schema_editor.connection.in_atomic_block:
            raise NotSupportedError(
                "AddLeaseColumns builds indexes concurrently, which PostgreSQL does not do in a "
                "transaction: set atomic = False on the migration"
            )
        options = without.models[app_label, self.model_name.lower()].options
        return LiveTable(schema_editor, model, _indexes_of(model, options))


def _applies(model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor) -> bool:
    # Django's allow_migrate_model() says no for an unmanaged model, and the table of one is as
    # welcome here as any other.
    return router.allow_migrate_model(schema_editor.connection.alias, model)


def _indexes_of(
    model: type[models.Model], had: Mapping[str, Any]
) -> Callable[[str], list[models.Index]]:
    """Return what lists the new indexes of the table or of a partition, by its name."""
    key = [field.name for field in model._meta.pk_fields]
    has_priority = any(field.name == "priority" for field in model._meta.local_fields)

    def of(table: str) -> list[models.Index]:
        found = lease_indexes(table, key, has_priority=has_priority)
        return [index for index in found if index.name.endswith(INDEXES)]

    had_names = {index.name for index in had.get("indexes", [])}
    is_new = [index.name not in had_names for index in of(model._meta.db_table)]
    return lambda table: list(compress(of(table), is_new))


class InstallSQL(Operation):
    """Install the SQL functions and monitoring views of one job table.

    The functions let workers in any language take part, the views show what is stuck. Both are
    rendered from the installed version of this package, so after an upgrade run ``manage.py
    reaper_sql --install``; a check says when that is due.

    They are those of the model as it is today. Where a later migration gives the table its present
    name or columns, they are made at the end of ``migrate``; where the model is gone, not at all.
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
        """Make the policies' function, then the table's functions and views if it is ready."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if not _applies(model, schema_editor):
            return
        connection = schema_editor.connection
        with transaction.atomic(using=connection.alias):
            # A later migration of this package may make a table that its functions already name.
            schema_editor.execute("SET LOCAL check_function_bodies = off")
            installed.policies(connection).create(connection)
            for table in self._tables(app_label):
                installed.create_when_ready(table, connection)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the table's functions and views; other tables may need the policies' function."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if not _applies(model, schema_editor):
            return
        for table in self._tables(app_label):
            for made in reversed(installed.of_table(table, schema_editor.connection)):
                made.drop(schema_editor.connection)

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Install the job functions and views of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_sql"

    def _tables(self, app_label: str) -> list[JobTable]:
        # The registry knows the model of today and not the one of this migration's state, which may
        # have been renamed or deleted since.
        try:
            return [table_of(apps.get_model(app_label, self.model_name))]
        except LookupError:
            return []
