"""How one model's table takes part in the protocol: its columns, its words, its key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Col
from psycopg.sql import Composable, Identifier

from jobreaper import conf
from jobreaper.base import PROTOCOL_COLUMNS, index_by_kind
from jobreaper.db import connection_for, converters, in_words
from jobreaper.progress import progress_fields
from jobreaper.sql import OWN_TABLES
from jobreaper.states import AttemptsCounted, OnExpiry, Status

logger = logging.getLogger("jobreaper.tables")

# A table may have these besides the protocol's columns. Every change of status sets them.
EXTRA_PARTS: Final = ("updated_at",)

# Fields that are not part of the protocol, and are used if they have this name and such a type.
EXTRA_FIELDS: Final[Mapping[str, tuple[type[models.Field[Any, Any]], ...]]] = MappingProxyType(
    {
        "type": (models.CharField, models.TextField),
        "priority": (models.IntegerField, models.FloatField, models.DecimalField),
        "queue": (models.CharField, models.TextField),
        "result": (models.JSONField,),
        "progress": (models.JSONField,),
        "progress_at": (models.DateTimeField,),
        "stalls_at": (models.DateTimeField,),
        "org_id": (models.Field,),
        "dedupe_key": (models.CharField, models.TextField, models.UUIDField),
        "created_at": (models.DateTimeField,),
    }
)

# What is installed in the database for a table, each with its own name.
FUNCTIONS: Final = ("claim", "heartbeat", "progress", "finish", "release", "fail", "reap")
VIEWS: Final = ("stale_monitor", "stale_validation", "reclaim_history")

LeaseValues = tuple[int, str | None, int, datetime | None]

OWN_WORDS: Final = MappingProxyType({status: (status.value,) for status in Status})


def table_fields(model: type[models.Model]) -> list[models.Field[Any, Any]]:
    """Return the fields whose columns are in the model's own table. Statements of the protocol know
    no other: those that multi-table inheritance keeps in a parent's table are read when they are
    asked for, as deferred ones are.
    """
    own = (model._meta.concrete_model or model)._meta
    return list(own.local_concrete_fields)


@dataclass(frozen=True, eq=False, kw_only=True)
class Shape:
    """The properties of one job table, which determine its statements. ``register()`` explains
    them.
    """

    model: type[models.Model]
    ttl_sec: float | None = None
    ttl_sec_by_stage: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    given_columns: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    words: Mapping[Status, tuple[str, ...]] = field(default_factory=lambda: OWN_WORDS)
    max_attempts: int = conf.DEFAULT_MAX_ATTEMPTS
    attempts_counted: AttemptsCounted = AttemptsCounted.CLAIM
    on_expiry: OnExpiry = OnExpiry.REQUEUE
    note: str = "RECLAIMED_TTL"
    retention: bool = False
    function_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reclaim_only: bool = False
    # The schemas of this table and of the package's own, by name. Only functions in the database
    # name them; a statement of Python's looks in the search_path.
    schemas: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def name(self) -> str:
        """The table's name in events, metrics and ``--table``, with its schema if it has one."""
        return ".".join(self.name_parts)

    @property
    def name_parts(self) -> list[str]:
        """The table's name, after its schema's if it has one."""
        # Django users write another schema's table as 'schema"."table'.
        return self.model._meta.db_table.strip('"').split('"."')

    @property
    def identifier(self) -> Identifier:
        """The table's name in a statement."""
        if self.name in self.schemas:
            return Identifier(self.schemas[self.name], self.name_parts[-1])
        return Identifier(*self.name_parts)

    @property
    def own_tables(self) -> dict[str, Composable]:
        """The names in a statement of the package's own tables whose schemas are known."""
        names = [name for name in OWN_TABLES if name in self.schemas]
        return {name: Identifier(self.schemas[name], name) for name in names}

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """The table's column for each part of the protocol that has one."""
        found = {}
        for part in PROTOCOL_COLUMNS:
            with suppress(FieldDoesNotExist):
                found[part] = self.column(part)
        for part, name in self.given_columns.items():
            found.pop(part, None)
            if name is not None:
                found[part] = self.column(name)
        return found

    @property
    def touched(self) -> tuple[str, ...]:
        """The columns that say when a row was changed last: that which plays the part of
        ``updated_at``, and those of fields with ``auto_now``.
        """
        given = [column for part, column in self.columns.items() if part in EXTRA_PARTS]
        own = [
            str(field.column)
            for field in table_fields(self.model)
            if getattr(field, "auto_now", False)
        ]
        return tuple(dict.fromkeys([*given, *own]))

    @property
    def columns_elsewhere(self) -> dict[type[models.Model], list[str]]:
        """The columns that are in a parent's table because of multi-table inheritance, by
        parent.
        """
        found: dict[type[models.Model], list[str]] = {}
        for own in self._fields.values():
            if own not in self.model._meta.local_concrete_fields:
                found.setdefault(own.model, []).append(str(own.column))
        return found

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The parts of the protocol without a column in the table."""
        return tuple(part for part in PROTOCOL_COLUMNS if part not in self.columns)

    @property
    def can_be_leased(self) -> bool:
        """Whether workers can claim its jobs. Otherwise, the table is only watched and
        reclaimed.
        """
        return not self.missing and not self.has_composite_key

    @property
    def has_composite_key(self) -> bool:
        """Whether several columns are the primary key."""
        return len(self.key_columns) > 1

    @property
    def pk(self) -> models.Field[Any, Any]:
        """The primary key's field."""
        return self.model._meta.pk

    @property
    def key_is_computed(self) -> bool:
        """Whether the key is compared with an expression and not with its column, or both written
        and read through expressions.
        """
        return any(
            type(own.get_col("job")) is not Col
            or (
                (hasattr(own, "get_placeholder") or hasattr(own, "get_placeholder_sql"))
                and type(own).select_format is not models.Field.select_format
            )
            for own in self.model._meta.pk_fields
        )

    @cached_property
    def key_columns(self) -> tuple[str, ...]:
        """The primary key's columns; several for a composite key."""
        return tuple(str(key.column) for key in self.model._meta.pk_fields)

    @property
    def alias(self) -> str:
        """The alias of the table's database, from Django's routers."""
        return router.db_for_write(self.model)

    def installed_name(self, verb: str) -> str:
        """Return the name of the function or view for ``verb``, if it is not too long."""
        return self.function_names.get(verb, f"{self.name_parts[-1]}_{verb}")

    def column(self, name: str) -> str:
        """Return the column of the field ``name``, which may also be the name of the column.

        Raises:
            FieldDoesNotExist: the model has neither.
        """
        for own in self.model._meta.concrete_fields:
            if name in (own.name, own.column):
                return str(own.column)
        raise FieldDoesNotExist(f"{self.model._meta.label} has no field or column {name!r}")

    @cached_property
    def extras(self) -> Mapping[str, models.Field[Any, Any]]:
        """The fields of ``EXTRA_FIELDS`` that the table has."""
        return {
            own.name: own
            for own in table_fields(self.model)
            if isinstance(own, EXTRA_FIELDS.get(own.name, ()))
        }

    @property
    def kind_parts(self) -> tuple[str, ...]:
        """The columns that make a job's kind, in their order in the index by kind."""
        return ("stage", *(name for name in ("type", "queue", "priority") if name in self.extras))

    @cached_property
    def is_indexed_by_kind(self) -> bool:
        """Whether the model has the index that ``index_by_kind()`` makes for its kinds. NULL is no
        priority that it could find.
        """
        has_priority = "priority" in self.extras
        if not self.model._meta.managed or (has_priority and self.extras["priority"].null):
            return False
        key = [own.name for own in self.model._meta.pk_fields]
        wanted = index_by_kind(self.model._meta.db_table, self.kind_parts[1:], key).deconstruct()
        return any(index.deconstruct() == wanted for index in self.model._meta.indexes)

    @property
    def has_result(self) -> bool:
        """Whether it has a field for what a job's function returns. A kind of ``JSONField`` may
        store something else than JSON.
        """
        return type(self.extras.get("result")) is models.JSONField

    @cached_property
    def tracks_progress(self) -> bool:
        """Whether it has the fields for what a job's function reports, and so for stalled jobs."""
        return self.can_be_leased and bool(progress_fields(table_fields(self.model)))

    def stalls_at(self, job: models.Model) -> datetime | None:
        """Return when a claimed job counts as stalled, as far as Python can represent it."""
        own = self.extras["stalls_at"].attname if self.tracks_progress else ""
        at: datetime | None = vars(job).get(own)
        return at

    def kind(self, job: models.Model) -> str:
        """Return by what the handler of a claimed job is looked up: its type or, in a table without
        types, its stage.
        """
        name = "type" if "type" in self.extras else self._attributes["stage"]
        return str(getattr(job, name))

    @property
    def counts_reaps(self) -> bool:
        """Whether the reaper counts an attempt when it gives its job back."""
        return self.attempts_counted is AttemptsCounted.REAP

    @property
    def has_only_beats(self) -> bool:
        """Whether heartbeats are the only sign of life, as nothing says when an attempt began."""
        return "last_heartbeat_at" in self.columns and "claimed_at" not in self.columns

    @cached_property
    def lease_values(self) -> Callable[[models.Model], LeaseValues]:
        """A function that reads epoch, stage, attempt and end of the lease from a claimed job."""
        parts = ("lease_epoch", "stage", "attempt_count", "lease_expires_at")
        read: Callable[[models.Model], LeaseValues] = attrgetter(
            *(self._attributes[part] for part in parts)
        )
        field = self._fields["stage"]
        if type(field) in (models.CharField, models.TextField):
            return read

        def with_stage_as_text(job: models.Model) -> LeaseValues:
            epoch, value, attempt, expires_at = read(job)
            # Settings, tasks and events have it as the database does.
            stage = field.get_db_prep_value(value, self.connection())
            return epoch, None if stage is None else str(stage), attempt, expires_at

        return with_stage_as_text

    def deadline(self, job: models.Model) -> datetime | None:
        """Return the hard end of a claimed job's attempt, as far as Python can represent it."""
        deadline: datetime | None = vars(job).get(self._attributes["deadline_at"])
        return deadline

    def is_nullable(self, part: str) -> bool:
        """Return whether a part of the protocol may be NULL. A part without a column always is."""
        return part not in self.columns or bool(self._fields[part].null)

    def is_text(self, part: str) -> bool:
        """Return whether a part of the protocol is text. A part without a column always is."""
        types = (models.CharField, models.TextField)
        return part not in self.columns or isinstance(self._fields[part], types)

    def choices(self, part: str) -> frozenset[str]:
        """Return the values that a part's field allows, as text; none where it allows any."""
        choices = self._fields[part].flatchoices if part in self.columns else ()
        return frozenset(str(value) for value, _ in choices)

    def max_length(self, part: str) -> int | None:
        """Return how many characters fit into a part of the protocol, if that is limited."""
        return self._fields[part].max_length if part in self.columns else None

    @cached_property
    def _attributes(self) -> Mapping[str, str]:
        return {part: own.attname for part, own in self._fields.items()}

    @cached_property
    def _fields(self) -> Mapping[str, models.Field[Any, Any]]:
        by_column = {own.column: own for own in self.model._meta.concrete_fields}
        return {part: by_column[column] for part, column in self.columns.items()}

    def in_words(self, error: Exception) -> str:
        """Return a database error about the table as one line that says what to do."""
        return in_words(error, is_managed=self.model._meta.managed)

    def word(self, status: Status) -> str:
        """Return the word that the table uses for ``status``."""
        return self.words[status][0]

    def connection(self, alias: str | None = None) -> BaseDatabaseWrapper:
        """Return this thread's connection to the table's database, or to ``alias``."""
        return connection_for(alias or self.alias)

    def prepare_pk(self, pk: object) -> Any:
        """Return ``pk`` as a statement's parameter.

        Raises:
            ValueError, TypeError, ValidationError: it cannot be a key of this table.
        """
        value = pk
        # A message or a form has it as text. What is no key is refused below.
        with suppress(ValidationError):
            value = self.pk.to_python(pk)
        key = self.pk.get_db_prep_value(value, self.connection())
        # In the claim's statement, NULL means "any job that is due".
        if key is None:
            raise ValueError(f"{pk!r} cannot be a key of {self.name}")
        # Of a field that converts, it is not known which of the two they are for.
        if key == value:
            self.pk.run_validators(key)
        return key

    def read_pk(self, key: Any, *selected: Any) -> Any:
        """Return the Python value of a key that a statement returned, as in ``job.pk``: the inverse
        of ``prepare_pk()``. ``selected`` are the columns of the statement's ``key_as_read``.

        A key that its field cannot read, such as one that cannot be decrypted, is returned as it
        is: what was done to the job is done, and has to be reported.
        """
        if not (selected or self._key_converters):
            return key
        read = list(selected or [key])
        try:
            for place, convert, column in self._key_converters:
                read[place] = convert(read[place], column, self.connection())
        # The field is not ours.
        except Exception as error:
            logger.warning("cannot read the key %s of %s: %s", key, self.name, in_words(error))
            return key
        return tuple(read) if self.has_composite_key else read[0]

    @cached_property
    def _key_converters(self) -> list[tuple[int, Any, Any]]:
        return [
            (place, convert, column)
            for place, own in enumerate(self.model._meta.pk_fields)
            for convert, column in converters(self.connection(), own)
        ]
