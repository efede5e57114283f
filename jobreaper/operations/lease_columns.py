"""``AddLeaseColumns``: a large table becomes a job table under traffic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import compress
from typing import Any, Final

from django.db import models
from django.db.migrations.state import ProjectState

from jobreaper.base import LeasedJob, lease_indexes
from jobreaper.exceptions import ConfigurationError, NotLeasable
from jobreaper.operations.of_table import OfTable, Place
from jobreaper.schema import guard
from jobreaper.schema.live_table import LiveTable
from jobreaper.tables import JobTable

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


class AddLeaseColumns(OfTable):
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

    def _make(self, place: Place) -> None:
        """Add the columns, then build the indexes.

        Raises:
            ConfigurationError: the table has such columns that the model does not declare.
            NotLeasable: the key is composite.
            NotSupportedError: the migration runs in a transaction.
        """
        job_table = JobTable(model=place.model)
        if job_table.has_composite_key:
            raise NotLeasable(job_table.name, ())
        table = self._table(place)
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

    def _drop(self, place: Place) -> None:
        """Drop the indexes, then the columns that the operation added."""
        table = self._table(place)
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

    def _new_fields(self, place: Place) -> dict[str, models.Field[Any, Any]]:
        """Return the fields that the operation adds to the model, by column."""
        had = place.without.models[place.app_label, self.model_name.lower()].fields
        return {
            str(field.column): field
            for field in place.model._meta.local_fields
            if field.name in COLUMNS - had.keys()
        }

    def _mark(self, place: Place) -> str:
        """Return the comment of a column that this operation has added."""
        return f"Added by AddLeaseColumns to {place.app_label}.{self.model_name}"

    def _refuse_strangers(
        self,
        place: Place,
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

    def _table(self, place: Place) -> LiveTable:
        options = place.without.models[place.app_label, self.model_name.lower()].options
        return self._live_table(place, _indexes_of(place.model, options))


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
