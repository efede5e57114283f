"""A function or view in the database: creating it, replacing it while it is in use, dropping it.

Each has a comment with the hash of its source, so that a check can tell when the database and the
package differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.db import InternalError, ProgrammingError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Identifier

from jobreaper import sql
from jobreaper.db import fetch, sent_as_it_is

MARK: Final = "jobreaper sha256:"
# The errors of replacing a function or view that has other columns, another result or other
# argument names.
OTHER_SHAPE: Final = {"42P13", "42P16"}
HAS_DEPENDENTS: Final = "2BP01"
NOT_ALLOWED: Final = "42501"

# How the source of a function quotes its body.
_QUOTE: Final = re.compile(r"^AS (\$\w+\$)$", re.MULTILINE)


class NotAllowed(ProgrammingError):
    """The role may not create or replace a function or view."""


@dataclass(frozen=True)
class Installed:
    """One function or view: its name in the database, the types of a function's arguments, and the
    statement that creates it.
    """

    kind: Literal["FUNCTION", "VIEW"]
    identifier: Identifier
    source: str
    arguments: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _quoted_safely(self.source))

    @property
    def name(self) -> str:
        """The name, schema included, as SQL writes it."""
        return self.identifier.as_string(None)

    @property
    def signature(self) -> str:
        """The name that identifies it in SQL; that of a function includes the arguments."""
        return f"{self.name}{self.arguments}"

    @property
    def comment(self) -> str:
        """The mark that says from which source it was created."""
        return MARK + hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """The statements that create or replace it. Only granted roles may execute a function."""
        return [self.source, *self._finishing]

    @property
    def _finishing(self) -> list[str]:
        return [
            *([f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC"] * (self.kind == "FUNCTION")),
            f"COMMENT ON {self.kind} {self.signature} IS '{self.comment}'",
        ]

    def was_edited(self, body: str | None, settings: Sequence[str] | None) -> bool:
        """Return whether a function with this mark has other code: ``CREATE OR REPLACE`` and
        ``ALTER`` do not change its comment. The query of a view cannot be compared.
        """
        if self.kind == "VIEW":
            return False
        head, _, own_body, _ = _split(self.source)
        own = [f"{name}={value}" for name, value in re.findall(r"^SET (\w+) = (.+)$", head, re.M)]
        return body != own_body or _unquoted(settings or ()) != _unquoted(own)

    def create(self, connection: BaseDatabaseWrapper) -> None:
        """Create or replace it. Rights that were granted to roles remain; PUBLIC gets none.

        An earlier version with other columns or arguments is dropped first.

        Raises:
            NotAllowed: another role owns it, or this one may create nothing in the schema.
            ProgrammingError: somebody else has created an object of this name, or other objects
                depend on the earlier version. Nothing has changed.
        """
        try:
            self._create(connection)
        except ProgrammingError as error:
            if getattr(error.__cause__, "sqlstate", None) != NOT_ALLOWED:
                raise
            line = str(error).strip().partition("\n")[0]
            raise NotAllowed(
                f"{self.name} cannot be created or replaced: {line}. Run this as the role that "
                f"owns it, or let that role ALTER {self.kind} {self.signature} OWNER TO this one"
            ) from error.__cause__

    def _create(self, connection: BaseDatabaseWrapper) -> None:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            # Replacing a function twice at the same time fails, and two deployments may migrate at
            # the same time.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [MARK])
            granted = []
            for is_same, dropping, _, grants in self._namesakes(connection):
                if not is_same or not self._can_replace(connection):
                    self._drop(connection, dropping)
                    granted += grants
            for statement in [self.source, *granted, *self._finishing]:
                cursor.execute(*sent_as_it_is(connection, statement))

    def drop(self, connection: BaseDatabaseWrapper) -> None:
        """Drop it if it exists."""
        with connection.cursor() as cursor:
            cursor.execute(f"DROP {self.kind} IF EXISTS {self.signature}")

    def _namesakes(self, connection: BaseDatabaseWrapper) -> list[tuple[Any, ...]]:
        schema, name = self.identifier._obj
        found = fetch(
            connection,
            sql.render("statements/namesakes"),
            {
                "kind": self.kind,
                "schema": schema,
                "name": name,
                "function": self.signature,
                "signature": f"{'TABLE' if self.kind == 'VIEW' else self.kind} {self.signature}",
            },
        )
        for is_same, dropping, comment, _ in found:
            if is_same and not (comment or "").startswith(MARK):
                raise ProgrammingError(
                    f"{dropping} is there and was not made by jobreaper: rename it, or choose "
                    "another name in register(functions={…})"
                )
        return [row for row in found if (row[2] or "").startswith(MARK)]

    def _can_replace(self, connection: BaseDatabaseWrapper) -> bool:
        try:
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                cursor.execute(*sent_as_it_is(connection, self.source))
        except ProgrammingError as error:
            if getattr(error.__cause__, "sqlstate", None) in OTHER_SHAPE:
                return False
            raise
        return True

    def _drop(self, connection: BaseDatabaseWrapper, dropping: str) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP {dropping}")
        except InternalError as error:
            if getattr(error.__cause__, "sqlstate", None) != HAS_DEPENDENTS:
                raise
            raise ProgrammingError(
                f"{self.name} has another shape in this version, and other objects depend on it: "
                f"drop those, install again, and make them anew. {error}"
            ) from error


def _split(source: str) -> tuple[str, str, str, str]:
    """Return the parts of a function's source: before the body, the quote, the body, the rest."""
    [quote] = _QUOTE.findall(source)[:1]
    head, rest = source.split(quote, 1)
    body, tail = rest.rsplit(quote, 1)
    return head, quote, body, tail


def _quoted_safely(source: str) -> str:
    """Return the source of a function with a quote that what it runs does not contain: the name of
    a stage may be anything.
    """
    if _QUOTE.search(source) is None:
        return source
    head, quote, body, tail = _split(source)
    while quote in body:
        quote = f"{quote[:-1]}_$"
    return f"{head}{quote}{body}{quote}{tail}"


def _unquoted(settings: Sequence[str]) -> list[str]:
    return [re.sub("[\"']", "", setting) for setting in settings]
