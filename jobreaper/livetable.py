"""Changing the columns and indexes of a table while programs use it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db import OperationalError, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from jobreaper import sql
from jobreaper.db import fetch, in_words

logger = logging.getLogger(__name__)

# ALTER TABLE waits for every transaction that uses the table, and everything after it waits for
# the ALTER TABLE: so it waits briefly, lets traffic through, and tries again.
LOCK_TIMEOUT: Final = "2s"
TRIES: Final = 30
WAIT_SEC: Final = 1.0

# As pg_class.relkind has it.
PARTITIONED: Final = "p"


@dataclass(frozen=True)
class _Relation:
    """A table or a partition."""

    table: str
    schema: str | None = None
    kind: str | None = None

    def quoted(self, name: str) -> str:
        """Return the quoted name of something in the schema of the table."""
        return _quoted(*([self.schema] if self.schema else []), name)

    @property
    def name(self) -> str:
        return self.quoted(self.table)


def _quoted(*parts: str) -> str:
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in parts)


class LiveTable:
    """A model's table, changed without keeping the programs that use it waiting.

    ``indexes_of`` returns the indexes of the table or of a partition by its name, which theirs
    contain.
    """

    def __init__(
        self,
        editor: BaseDatabaseSchemaEditor,
        model: type[models.Model],
        indexes_of: Callable[[str], Sequence[models.Index]],
    ) -> None:
        self.editor = editor
        self.model = model
        self.indexes_of = indexes_of
        # Django users write another schema's table as 'schema"."table'.
        *schema, table = model._meta.db_table.strip('"').split('"."')
        bare = _Relation(table, *schema)
        kinds = fetch(
            editor.connection,
            "SELECT relkind FROM pg_class WHERE oid = to_regclass(%(table)s)",
            {"table": bare.name},
        )
        self.root = replace(bare, kind=kinds[0][0]) if kinds else bare

    def columns(self) -> dict[str, str | None]:
        """Return the comments of the columns that are there, by name; none without a table."""
        statement = sql.render("statements/columns")
        return dict(fetch(self.editor.connection, statement, {"table": self.root.name}))

    def add_columns(
        self, definitions: Mapping[str, str], params: Sequence[Any], comment: str
    ) -> None:
        """Add columns at once, all with the same comment.

        Raises:
            OperationalError: the table was in use whenever it was tried.
            ProgrammingError: one is there by now. It is not this one's, so it gets no comment.
        """
        changes = [f"ADD COLUMN {_quoted(name)} {text}" for name, text in definitions.items()]
        words = self.editor.quote_value(comment)
        self._alter(
            changes,
            params,
            [
                f"COMMENT ON COLUMN {self.root.name}.{_quoted(name)} IS {words}"
                for name in definitions
            ],
        )

    def drop_columns(self, names: Collection[str]) -> None:
        """Drop columns at once.

        Raises:
            OperationalError: the table was in use whenever it was tried.
        """
        self._alter([f"DROP COLUMN IF EXISTS {_quoted(name)}" for name in names])

    def _alter(
        self, changes: Sequence[str], params: Sequence[Any] = (), then: Sequence[str] = ()
    ) -> None:
        if changes:
            # The name is not a parameter's.
            name = self.root.name.replace("%", "%%")
            self._briefly(f"ALTER TABLE {name} {', '.join(changes)}", params, then)

    def build_indexes(self) -> None:
        """Build the indexes that are not there, concurrently; those of a partitioned table on each
        partition. What an interrupted build has left is built anew.
        """
        with self._without_timeouts():
            for place in range(len(self._indexes(self.root))):
                self._build(self.root, place)

    def drop_indexes(self) -> None:
        """Drop the indexes that are there."""
        with self._without_timeouts():
            for index in self._indexes(self.root):
                name = self.root.quoted(index.name)
                if self._is_valid(self.root, name) is None:
                    continue
                if self.root.kind == PARTITIONED:
                    self._briefly(f"DROP INDEX IF EXISTS {name}")
                else:
                    self._drop_concurrently(name)

    def _indexes(self, relation: _Relation) -> Sequence[models.Index]:
        whole = relation is self.root
        return self.indexes_of(self.model._meta.db_table if whole else relation.table)

    def _build(self, relation: _Relation, place: int) -> None:
        index = self._indexes(relation)[place]
        name = relation.quoted(index.name)
        is_valid = self._is_valid(relation, name)
        if relation.kind == PARTITIONED:
            # It cannot be built concurrently, but at once where the partitions are left out.
            if is_valid is None:
                self._briefly(self._creating(index, "INDEX", f"ONLY {relation.name}"))
            self._build_on_partitions(relation, place)
            return
        if is_valid is False:
            self._drop_concurrently(name)
        if not is_valid:
            # Without IF NOT EXISTS, which would take another table's index of this name for it.
            statement = self._creating(index, "INDEX CONCURRENTLY", relation.name)
            self.editor.execute(statement, params=None)

    def _drop_concurrently(self, index: str) -> None:
        self.editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", params=None)

    def _creating(self, index: models.Index, kind: str, on: str) -> str:
        statement = index.create_sql(self.model, self.editor)
        return statement.template.replace("INDEX", kind, 1) % {**statement.parts, "table": on}

    def _build_on_partitions(self, relation: _Relation, place: int) -> None:
        whole = relation.quoted(self._indexes(relation)[place].name)
        for partition, has_valid_index in self._partitions(relation, whole):
            # One that was added meanwhile came with its index.
            if not has_valid_index:
                self._build(partition, place)
                part = partition.quoted(self._indexes(partition)[place].name)
                self._briefly(f"ALTER INDEX {whole} ATTACH PARTITION {part}")

    def _partitions(self, relation: _Relation, index: str) -> Iterator[tuple[_Relation, bool]]:
        rows = fetch(
            self.editor.connection,
            sql.render("statements/partitions"),
            {"index": index, "table": relation.name},
        )
        for table, schema, kind, has_valid_index in rows:
            yield _Relation(table, schema, kind), has_valid_index

    def _is_valid(self, relation: _Relation, index: str) -> bool | None:
        """Return whether an index of this name serves; None where the table has none."""
        rows = fetch(
            self.editor.connection,
            sql.render("statements/index_is_valid"),
            {"index": index, "table": relation.name},
        )
        return rows[0][0] if rows else None

    def _briefly(
        self, statement: str, params: Sequence[Any] | None = None, then: Sequence[str] = ()
    ) -> None:
        """Send a statement that needs the table for itself, until it gets it; in the same
        transaction what comes then.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                self._once(statement, params, then)
            except OperationalError as error:
                if not tries_left:
                    raise
                logger.info("waiting for a lock on %s: %s", self.root.name, in_words(error))
                time.sleep(WAIT_SEC * random.uniform(0.5, 1.5))
            else:
                return

    def _once(self, statement: str, params: Sequence[Any] | None, then: Sequence[str]) -> None:
        # What sqlmigrate prints is run by somebody else, without this transaction.
        begin, commit = (["BEGIN"], ["COMMIT"]) if self.editor.collect_sql else ([], [])
        with transaction.atomic(using=self.editor.connection.alias):
            for each in [*begin, f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"]:
                self.editor.execute(each, params=None)
            self.editor.execute(statement, params)
            for each in [*then, *commit]:
                self.editor.execute(each, params=None)

    @contextmanager
    def _without_timeouts(self) -> Iterator[None]:
        """What is done concurrently waits for older transactions, and cut short it leaves an index
        of no use: the limits that a role has for its queries must not end it.
        """
        [limits] = fetch(
            self.editor.connection,
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
            {},
        )
        self._limit("0", "0")
        try:
            yield
        finally:
            self._limit(*limits)

    def _limit(self, lock_timeout: str, statement_timeout: str) -> None:
        self.editor.execute(f"SET lock_timeout = '{lock_timeout}'", params=None)
        self.editor.execute(f"SET statement_timeout = '{statement_timeout}'", params=None)
