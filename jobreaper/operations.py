"""Operations for the migrations of a project that uses this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import NotSupportedError, models, router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from jobreaper.base import LeasedJob, lease_indexes
from jobreaper.exceptions import ConfigurationError, NotLeasable
from jobreaper.schema import functions, guard, migrating
from jobreaper.schema.live_table import LiveTable
from jobreaper.schema.objects import NotAllowed
from jobreaper.tables import JobTable, table_of

# What the operation adds must never change, because every later version of this package reads
# existing migrations again. makemigrations finds fields that LeasedJob gets later.
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


@dataclass(frozen=True)
class _Place:
    """The table that an operation is for: its model, and the project without the operation."""

    app_label: str
    schema_editor: BaseDatabaseSchemaEditor
    model: type[models.Model]
    without: ProjectState


class _OfTable(Operation):
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
        change: Callable[[_Place], None],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        having: ProjectState,
        without: ProjectState,
    ) -> None:
        model = having.apps.get_model(app_label, self.model_name)
        # Django's allow_migrate_model() returns False for an unmanaged model, but its table is
        # supported here.
        if router.allow_migrate_model(schema_editor.connection.alias, model):
            change(_Place(app_label, schema_editor, model, without))

    def _make(self, place: _Place) -> None:
        raise NotImplementedError

    def _drop(self, place: _Place) -> None:
        raise NotImplementedError


class AddLeaseColumns(_OfTable):
    """Turn a large table under traffic into a job table: add the missing lease columns and their
    indexes.

    The columns are nullable or have a constant default, so no row is rewritten. One statement adds
    all of them; it waits two seconds for its lock and is tried again. The indexes are built
    concurrently, those of a partitioned table partition by partition. Meanwhile, old code continues
    to insert and update. The migration must have ``atomic = False``. If you run it again after an
    interruption, it continues where it stopped. If you reverse it, it drops the columns that it
    added, which it recognizes by their comments, and no others.

    With ``guard=True`` the table gets the trigger of ``GuardLease`` as well.
    """

    def __init__(self, model_name: str, guard: bool = False) -> None:
        super().__init__(model_name)
        self.guard = guard

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the fields and indexes to the model."""
        model_state = state.models[app_label, self.model_name.lower()]
        for field in LeasedJob._meta.local_fields:
            if field.name in COLUMNS - model_state.fields.keys():
                state.add_field(app_label, self.model_name.lower(), field.name, field.clone(), True)
        model = state.apps.get_model(app_label, self.model_name)
        for index in _indexes_of(model, model_state.options)(model._meta.db_table):
            state.add_index(app_label, self.model_name.lower(), index)

    def _make(self, place: _Place) -> None:
        """Add the columns, then build the indexes.

        Raises:
            ConfigurationError: the table has such columns that the model does not declare.
            NotLeasable: the key is composite.
            NotSupportedError: the migration runs in a transaction.
        """
        job_table = JobTable(model=place.model)
        if job_table.has_composite_key:
            raise NotLeasable(job_table.name, ())
        table = self._live_table(place)
        there = table.columns()
        new = self._new_fields(place)
        self._refuse_strangers(place, job_table, there, new)
        definitions = {}
        defaults: list[Any] = []
        for column, field in new.items():
            if column not in there:
                definition, params = place.schema_editor.column_sql(place.model, field)
                definitions[column] = str(definition)
                defaults += params or ()
        table.add_columns(definitions, defaults, self._mark(place))
        table.build_indexes()
        if self.guard:
            table.run(guard.creating(job_table))

    def _drop(self, place: _Place) -> None:
        """Drop the indexes, then the columns that the operation added."""
        table = self._live_table(place)
        there = table.columns()
        if self.guard:
            table.run(guard.dropping(JobTable(model=place.model)))
        table.drop_indexes()
        mark = self._mark(place)
        table.drop_columns([name for name in self._new_fields(place) if there.get(name) == mark])

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Add the lease columns and indexes to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_leases"

    def _new_fields(self, place: _Place) -> dict[str, models.Field[Any, Any]]:
        """Return the fields that the operation adds to the model, by column."""
        had = place.without.models[place.app_label, self.model_name.lower()].fields
        return {
            str(field.column): field
            for field in place.model._meta.local_fields
            if field.name in COLUMNS - had.keys()
        }

    def _mark(self, place: _Place) -> str:
        """Return the comment of a column that this operation has added."""
        return f"Added by AddLeaseColumns to {place.app_label}.{self.model_name}"

    def _refuse_strangers(
        self,
        place: _Place,
        table: JobTable,
        there: Mapping[str, str | None],
        new: Collection[str],
    ) -> None:
        """Refuse a table that already has one of the columns, if this operation did not add it. The
        column may contain something else, which the protocol would overwrite.
        """
        before = place.without.apps.get_model(place.app_label, self.model_name)
        declared = {own.column: own.name for own in before._meta.local_concrete_fields}
        columns = set(new)
        problems = [
            f"its field {declared[column]!r} has the column {column!r}: rename the field to "
            f"{column!r} before (by RenameField, which changes nothing in the database)"
            for column in sorted(columns & declared.keys())
        ]
        mark = self._mark(place)
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

    def _live_table(self, place: _Place) -> LiveTable:
        if place.schema_editor.connection.in_atomic_block:
            raise NotSupportedError(
                "AddLeaseColumns builds indexes concurrently, which PostgreSQL does not do in a "
                "transaction: set atomic = False on the migration"
            )
        options = place.without.models[place.app_label, self.model_name.lower()].options
        return LiveTable(place.schema_editor, place.model, _indexes_of(place.model, options))


def _indexes_of(
    model: type[models.Model], had: Mapping[str, Any]
) -> Callable[[str], list[models.Index]]:
    """Return a function that lists the new indexes of the table or of a partition, by its name."""
    key = [field.name for field in model._meta.pk_fields]
    has_priority = any(field.name == "priority" for field in model._meta.local_fields)

    def of(table: str) -> list[models.Index]:
        found = lease_indexes(table, key, has_priority=has_priority)
        return [index for index in found if index.name.endswith(INDEXES)]

    had_names = {index.name for index in had.get("indexes", [])}
    is_new = [index.name not in had_names for index in of(model._meta.db_table)]
    return lambda table: list(compress(of(table), is_new))


class GuardLease(_OfTable):
    """Let the table of a ``LeasedJob`` refuse an UPDATE from a stale copy of a row: one that lowers
    the epoch, or that makes a job which has ended queued or processing at the same epoch. Django
    raises ``IntegrityError``.

    ``LeasedJob.save()`` sends no such UPDATE. The trigger is for what goes past it: a queryset's
    ``update()``, data migrations, programs in other languages. It costs a comparison an UPDATE.
    """

    def _make(self, place: _Place) -> None:
        """Make the trigger.

        Raises:
            NotLeasable: the model has not the fields of a ``LeasedJob``.
        """
        _run(place, guard.creating(JobTable(model=place.model)))

    def _drop(self, place: _Place) -> None:
        """Drop the trigger."""
        _run(place, guard.dropping(JobTable(model=place.model)))

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Guard the leases of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_guard"


def _run(place: _Place, statement: str) -> None:
    LiveTable(place.schema_editor, place.model, lambda _: []).run(statement)


class InstallSQL(_OfTable):
    """Install the SQL functions and monitoring views of one job table.

    The functions are for workers in any language, the views show which jobs are stuck. Both are
    rendered from the installed version of this package, so run ``manage.py reaper_sql --install``
    after an upgrade. A check says when this is necessary.

    They always match the current model. If a later migration gives the table its current name or
    columns, they are created at the end of ``migrate``. If the model no longer exists, they are not
    created.
    """

    reduces_to_sql = False

    def _make(self, place: _Place) -> None:
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

    def _drop(self, place: _Place) -> None:
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
