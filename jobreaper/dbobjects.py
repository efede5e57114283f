"""A function or view in the database: made, made anew under whoever uses it, removed.

Each carries a comment with the hash of its source, so that a check can tell when the database and
the package have drifted apart.
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
from jobreaper.db import fetch

MARK: Final = "jobreaper sha256:"
# What replaces a function or view of another shape: its columns, its result, its arguments' names.
OTHER_SHAPE: Final = {"42P13", "42P16"}
HAS_DEPENDENTS: Final = "2BP01"


@dataclass(frozen=True)
class Installed:
    """One function or view: its name in the database, the types of a function's arguments, and the
    statement that makes it.
    """

    kind: Literal["FUNCTION", "VIEW"]
    identifier: Identifier
    source: str
    arguments: str = ""

    @property
    def name(self) -> str:
        """The name, schema included, as SQL writes it."""
        return self.identifier.as_string(None)

    @property
    def signature(self) -> str:
        """The name by which SQL knows it from others: a function's has the arguments."""
        return f"{self.name}{self.arguments}"

    @property
    def comment(self) -> str:
        """The mark that says from which source it was made."""
        return MARK + hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """What makes it, or makes it anew. Functions are not for everybody to execute."""
        return [self.source, *self._finishing]

    @property
    def _finishing(self) -> list[str]:
        return [
            *([f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC"] * (self.kind == "FUNCTION")),
            f"COMMENT ON {self.kind} {self.signature} IS '{self.comment}'",
        ]

    def was_edited(self, body: str | None, settings: Sequence[str] | None) -> bool:
        """Return whether a function that bears this mark runs something else: ``CREATE OR REPLACE``
        and ``ALTER`` leave its comment as it was. What a view shows cannot be compared.
        """
        if self.kind == "VIEW":
            return False
        head, own_body, _ = self.source.split("$body$")
        own = [f"{name}={value}" for name, value in re.findall(r"^SET (\w+) = (.+)$", head, re.M)]
        return body != own_body or _unquoted(settings or ()) != _unquoted(own)

    def create(self, connection: BaseDatabaseWrapper) -> None:
        """Make it, or make it anew; what was granted to roles stays, and to PUBLIC nothing is.

        One of an earlier version with other columns or arguments is dropped first.

        Raises:
            ProgrammingError: there is one of this name that somebody else has made, or the earlier
                one has objects of somebody else that depend on it. Nothing has changed.
        """
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            # Two who replace a function at once fail, and two deployments may well migrate at once.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [MARK])
            granted = []
            for is_same, dropping, _, grants in self._namesakes(connection):
                if not is_same or not self._can_replace(connection):
                    self._drop(connection, dropping)
                    granted += grants
            for statement in [self.source, *granted, *self._finishing]:
                cursor.execute(statement)

    def drop(self, connection: BaseDatabaseWrapper) -> None:
        """Remove it where it is there."""
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
                cursor.execute(self.source)
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


def _unquoted(settings: Sequence[str]) -> list[str]:
    return [re.sub("[\"']", "", setting) for setting in settings]
