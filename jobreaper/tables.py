"""``JobTable``: how a model's table takes part in the protocol, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier, Literal

from jobreaper import sql, values
from jobreaper.base import PROTOCOL_COLUMNS, LeasedJob
from jobreaper.db import connection_for
from jobreaper.exceptions import UnknownTable
from jobreaper.states import Status

# Composed in this order: a fragment may use those above it.
_FRAGMENTS: Final = (
    "policies",
    "backoff",
    "unlock",
    "attempt",
    "attempt_details",
    "chosen",
    "lost_columns",
    "verdict",
    "reaped",
)
_DUE: Final = {"due_to_claim": "of_stages", "due_to_dispatch": "to_dispatch"}


@dataclass(frozen=True, eq=False)
class JobTable:
    """One job table. ``ttl_sec`` is for running rows without a lease whose stage has no ttl."""

    model: type[models.Model]
    ttl_sec: float | None = None

    @cached_property
    def name(self) -> str:
        """The table's name in events, metrics and ``--table``, schema included where it has one."""
        return ".".join(self._name_parts)

    @property
    def _name_parts(self) -> list[str]:
        # Django users write another schema's table as 'schema"."table'.
        return self.model._meta.db_table.strip('"').split('"."')

    @property
    def pk(self) -> models.Field[Any, Any]:
        """The primary key's field."""
        return self.model._meta.pk

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """The table's column for each field of the protocol."""
        options = self.model._meta
        return {role: str(options.get_field(role).column) for role in PROTOCOL_COLUMNS}

    @property
    def alias(self) -> str:
        """The database that holds the table, by Django's routers."""
        return router.db_for_write(self.model)

    def connection(self, alias: str | None = None) -> BaseDatabaseWrapper:
        """Return this thread's connection to the table's database, or to ``alias``."""
        return connection_for(alias or self.alias)

    def prepare_pk(self, pk: object) -> Any:
        """Return ``pk`` as a statement's parameter.

        Raises:
            ValueError, TypeError, ValidationError: it cannot be a key of this table.
        """
        return self.pk.get_db_prep_value(pk, self.connection())

    def statement(self, name: str) -> str:
        """Return the text of ``sql/statements/<name>.sql`` for this table."""
        if name not in self._statements:
            self._statements[name] = sql.render(f"statements/{name}", self._parts)
        return self._statements[name]

    @cached_property
    def _statements(self) -> dict[str, str]:
        return {}

    @cached_property
    def _parts(self) -> Mapping[str, Composable]:
        columns = [str(field.column) for field in self.model._meta.concrete_fields]
        parts: dict[str, Composable] = {
            "table": Identifier(*self._name_parts),
            "table_name": Literal(self.name),
            "id": Identifier(str(self.pk.column)),
            "id_type": SQL(self.pk.rel_db_type(self.connection()) or "text"),
            "columns": SQL(", ").join([Identifier("job", column) for column in columns]),
            "priority": SQL("job.priority DESC, " if self._has_field("priority") else ""),
            "table_ttl_sec": SQL("{}::float8").format(Literal(self.ttl_sec)),
            **{role: Identifier(column) for role, column in self.columns.items()},
            "is_queued": self._has_status(Status.QUEUED),
            "is_processing": self._has_status(Status.PROCESSING),
            # Of a row of the table, and of a row of an expression in the protocol's own names.
            "policy_of_row": self._policy_of(self.columns["stage"]),
            "policy_of_job": self._policy_of("stage"),
        }
        for name in _FRAGMENTS:
            parts[name] = sql.compose(f"fragments/{name}", parts)
        for name, not_after in (
            ("lease_end", SQL("job.{}").format(Identifier(self.columns["deadline_at"]))),
            ("lease_end_at_claim", SQL("statement_timestamp() + policy.max_runtime")),
        ):
            parts[name] = sql.compose("fragments/lease_end", {**parts, "not_after": not_after})
        for name, condition in _DUE.items():
            wanted = {"wanted": sql.compose(f"fragments/{condition}", parts)}
            parts[name] = sql.compose("fragments/due", {**parts, **wanted})
        return parts

    @cached_property
    def reap_statement(self) -> str:
        """One batch of a pass."""
        return self._reap("reap", "FOR NO KEY UPDATE OF job SKIP LOCKED")

    @cached_property
    def reap_dry_run_statement(self) -> str:
        """The verdicts of a pass, with nothing locked."""
        return self._reap("reap_dry_run", "")

    def _reap(self, name: str, lock: str) -> str:
        parts = {**self._parts, "lock": SQL(lock)}
        parts["verdicts"] = sql.compose("fragments/verdicts", parts)
        return sql.render(f"statements/{name}", parts)

    def _has_status(self, status: Status) -> Composable:
        return SQL("job.{} = {}").format(Identifier(self.columns["status"]), Literal(status.value))

    def _policy_of(self, stage: str) -> Composable:
        return sql.compose("fragments/policy_of_job", {"stage": Identifier(stage)})

    def _has_field(self, name: str) -> bool:
        try:
            self.model._meta.get_field(name)
        except FieldDoesNotExist:
            return False
        return True


_tables: dict[type[models.Model], JobTable] = {}


def register(model: type[models.Model], *, ttl: float | str | None = None) -> JobTable:
    """Tell the reaper about a job table, and return it.

    Every concrete ``LeasedJob`` is registered by itself; call this from an ``AppConfig.ready()`` to
    give one a ``ttl`` (seconds, or text such as ``"15m"``), after which a running row without a
    lease counts as lost.
    """
    ttl_sec = None if ttl is None else values.positive_duration(ttl)
    table = _tables[model] = JobTable(model, ttl_sec)
    return table


def job_tables() -> list[JobTable]:
    """Return every job table, in the order of ``INSTALLED_APPS``."""
    return [
        table_of(model)
        for model in apps.get_models()
        if model in _tables or (issubclass(model, LeasedJob) and not model._meta.proxy)
    ]


def table_of(model: type[models.Model]) -> JobTable:
    """Return the job table of ``model``.

    Raises:
        UnknownTable: it is neither a ``LeasedJob`` nor registered.
    """
    concrete = model._meta.concrete_model or model
    if concrete in _tables:
        return _tables[concrete]
    if not issubclass(concrete, LeasedJob):
        raise UnknownTable(model._meta.label, (table.name for table in job_tables()))
    return register(concrete)


def named(names: Iterable[str | type[models.Model]] | None) -> list[JobTable]:
    """Return the job tables with these names or models, all of them for ``None``.

    Raises:
        UnknownTable: there is no such job table.
    """
    if names is None:
        return job_tables()
    known = {table.name: table for table in job_tables()}
    chosen: dict[str, JobTable] = {}
    for name in names:
        table = known.get(name) if isinstance(name, str) else table_of(name)
        if table is None:
            raise UnknownTable(str(name), known)
        chosen[table.name] = table
    return list(chosen.values())
