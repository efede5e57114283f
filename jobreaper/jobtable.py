"""``JobTable``: how one model's table takes part in the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from django.core.exceptions import FieldDoesNotExist
from django.db import models, router
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, rendering
from jobreaper.base import PROTOCOL_COLUMNS
from jobreaper.db import connection_for, in_words
from jobreaper.exceptions import NotLeasable
from jobreaper.states import AttemptsCounted, OnExpiry, Status

# What a table without leases may have besides the protocol's columns: set at every reclaim.
EXTRA_PARTS: Final = ("updated_at",)

# Fields that are no part of the protocol and are used where they have this name and such a type.
EXTRA_FIELDS: Final[Mapping[str, tuple[type[models.Field[Any, Any]], ...]]] = MappingProxyType(
    {
        "type": (models.CharField, models.TextField),
        "priority": (models.IntegerField, models.FloatField, models.DecimalField),
        "org_id": (models.Field,),
        "dedupe_key": (models.CharField, models.TextField, models.UUIDField),
        "created_at": (models.DateTimeField,),
    }
)

# What is installed in the database for a table, each under a name of its own.
FUNCTIONS: Final = ("claim", "heartbeat", "finish", "release", "fail", "reap")
VIEWS: Final = ("stale_monitor", "stale_validation", "reclaim_history")

LeaseValues = tuple[int, str | None, int, datetime | None]

OWN_WORDS: Final = MappingProxyType({status: (status.value,) for status in Status})


@dataclass(frozen=True, eq=False, kw_only=True)
class JobTable:
    """One job table. Made by ``register()``, which explains the parts."""

    model: type[models.Model]
    ttl_sec: float | None = None
    ttl_sec_by_stage: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    given_columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    words: Mapping[Status, tuple[str, ...]] = field(default_factory=lambda: OWN_WORDS)
    max_attempts: int = conf.DEFAULT_MAX_ATTEMPTS
    attempts_counted: AttemptsCounted = AttemptsCounted.CLAIM
    on_expiry: OnExpiry = OnExpiry.REQUEUE
    note: str = "RECLAIMED_TTL"
    retention: bool = False
    function_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    reclaim_only: bool = False

    @cached_property
    def name(self) -> str:
        """The table's name in events, metrics and ``--table``, schema included where it has one."""
        return ".".join(self.name_parts)

    @property
    def name_parts(self) -> list[str]:
        """The table's name, behind its schema's where it has one."""
        # Django users write another schema's table as 'schema"."table'.
        return self.model._meta.db_table.strip('"').split('"."')

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """The table's column for each part of the protocol that it has one for."""
        found = {}
        for part in PROTOCOL_COLUMNS:
            with suppress(FieldDoesNotExist):
                found[part] = self.column(part)
        return found | {part: self.column(name) for part, name in self.given_columns.items()}

    @property
    def columns_elsewhere(self) -> dict[type[models.Model], list[str]]:
        """The columns that multi-table inheritance has put into a parent's table, by parent."""
        found: dict[type[models.Model], list[str]] = {}
        for own in self._fields.values():
            if own not in self.model._meta.local_concrete_fields:
                found.setdefault(own.model, []).append(str(own.column))
        return found

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The parts of the protocol that the table has no column for."""
        return tuple(part for part in PROTOCOL_COLUMNS if part not in self.columns)

    @property
    def can_be_leased(self) -> bool:
        """Whether workers can claim its jobs; any other table is only watched and reclaimed."""
        return not self.missing and not self.has_composite_key

    @property
    def has_composite_key(self) -> bool:
        """Whether several columns are the primary key."""
        return len(self.key_columns) > 1

    @property
    def pk(self) -> models.Field[Any, Any]:
        """The primary key's field."""
        return self.model._meta.pk

    @cached_property
    def key_columns(self) -> tuple[str, ...]:
        """The primary key's columns; several for a composite key."""
        return tuple(str(key.column) for key in self.model._meta.pk_fields)

    @property
    def alias(self) -> str:
        """The database that holds the table, by Django's routers."""
        return router.db_for_write(self.model)

    def installed_name(self, verb: str) -> str:
        """Return what the function or view for ``verb`` is called, where that is not too long."""
        return self.function_names.get(verb, f"{self.name_parts[-1]}_{verb}")

    def column(self, name: str) -> str:
        """Return the column of the field ``name``; a column's own name will do as well.

        Raises:
            FieldDoesNotExist: the model has neither.
        """
        for own in self.model._meta.concrete_fields:
            if name in (own.name, own.column):
                return str(own.column)
        raise FieldDoesNotExist(f"{self.model._meta.label} has no field or column {name!r}")

    @cached_property
    def extras(self) -> Mapping[str, models.Field[Any, Any]]:
        """The fields that the table has of ``EXTRA_FIELDS``."""
        return {
            own.name: own
            for own in self.model._meta.concrete_fields
            if isinstance(own, EXTRA_FIELDS.get(own.name, ()))
        }

    @cached_property
    def lease_values(self) -> Callable[[models.Model], LeaseValues]:
        """What reads from a claimed job its epoch, stage, attempt and when its lease ends."""
        parts = ("lease_epoch", "stage", "attempt_count", "lease_expires_at")
        return attrgetter(*(self._attributes[part] for part in parts))

    def deadline(self, job: models.Model) -> datetime | None:
        """Return the hard end of a claimed job's attempt."""
        deadline: datetime | None = getattr(job, self._attributes["deadline_at"])
        return deadline

    def is_nullable(self, part: str) -> bool:
        """Return whether a part of the protocol may be NULL, as one without a column always is."""
        return part not in self.columns or bool(self._fields[part].null)

    def is_text(self, part: str) -> bool:
        """Return whether a part of the protocol is text, as one without a column always is."""
        types = (models.CharField, models.TextField)
        return part not in self.columns or isinstance(self._fields[part], types)

    def max_length(self, part: str) -> int | None:
        """Return how many characters a part of the protocol has room for, where that is limited."""
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
        """Return the word that the table writes for ``status``."""
        return self.words[status][0]

    def connection(self, alias: str | None = None) -> BaseDatabaseWrapper:
        """Return this thread's connection to the table's database, or to ``alias``."""
        return connection_for(alias or self.alias)

    def prepare_pk(self, pk: object) -> Any:
        """Return ``pk`` as a statement's parameter.

        Raises:
            ValueError, TypeError, ValidationError: it cannot be a key of this table.
        """
        key = self.pk.get_db_prep_value(pk, self.connection())
        # In the claim's statement NULL stands for "any job that is due".
        if key is None:
            raise ValueError(f"{pk!r} cannot be a key of {self.name}")
        self.pk.run_validators(key)
        return key

    def statement(self, name: str) -> str:
        """Return the text of ``sql/statements/<name>.sql`` for this table.

        Raises:
            NotLeasable: it needs columns that the table does not have.
        """
        if not self.can_be_leased:
            raise NotLeasable(self.name, self.missing)
        if name not in self._statements:
            self._statements[name] = rendering.leased(self, name)
        return self._statements[name]

    def limited_statement(self, name: str) -> str:
        """Return a claim or dispatch that keeps each stage to its ``max_running``.

        Raises:
            NotLeasable: it needs columns that the table does not have.
        """
        if not self.can_be_leased:
            raise NotLeasable(self.name, self.missing)
        if name not in self._limited_statements:
            self._limited_statements[name] = rendering.limited(self, name)
        return self._limited_statements[name]

    @cached_property
    def _statements(self) -> dict[str, str]:
        return {}

    @cached_property
    def _limited_statements(self) -> dict[str, str]:
        return {}

    @cached_property
    def reap_statement(self) -> str:
        """One batch of a pass."""
        if self.can_be_leased:
            return rendering.reap(self, "reap", rendering.SKIP_LOCKED)
        return rendering.reclaim(self, "reclaim", rendering.SKIP_LOCKED)

    @cached_property
    def reap_dry_run_statement(self) -> str:
        """The verdicts of a pass, with nothing locked."""
        if self.can_be_leased:
            return rendering.reap(self, "reap_dry_run", rendering.NO_LOCK)
        return rendering.reclaim(self, "reclaim_dry_run", rendering.NO_LOCK)

    @cached_property
    def reap_by_lot_statement(self) -> str:
        """The verdicts on a batch from anywhere, with nothing locked."""
        if self.can_be_leased:
            return rendering.reap(self, "reap_dry_run", rendering.NO_LOCK, by_lot=True)
        return rendering.reclaim(self, "reclaim_dry_run", rendering.NO_LOCK, by_lot=True)

    @cached_property
    def oldest_due_age_statement(self) -> str:
        """How long the oldest due job has waited, in a table with leases."""
        return rendering.oldest_due_age(self)

    @cached_property
    def scrape_statement(self) -> str:
        """How the table stands, for the metrics."""
        return rendering.scrape(self)
