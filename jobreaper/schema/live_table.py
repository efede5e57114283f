"""Changes the columns and indexes of a table while programs use it."""

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

logger = logging.getLogger("jobreaper.livetable")

# ALTER TABLE waits for every transaction that uses the table, and everything after it waits for the
# ALTER TABLE. So it waits briefly, lets traffic through, and tries again.
LOCK_TIMEOUT: Final = "2s"
TRIES: Final = 30
WAIT_SEC: Final = 1.0

TRANSACTION_TIMEOUT_SINCE: Final = 170_000

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
    """A model's table, which can be changed without blocking the programs that use it.

    ``indexes_of`` returns the indexes of the table or of a partition by its name, which the names
    of the indexes contain.
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
        """Return the comments of the existing columns, by name. The dict is empty without
        a table.
        """
        statement = sql.render("statements/columns")
        return dict(fetch(self.editor.connection, statement, {"table": self.root.name}))

    def add_columns(
        self, definitions: Mapping[str, str], params: Sequence[Any], comment: str
    ) -> None:
        """Add columns at once, all with the same comment.

        Raises:
            OperationalError: the table was in use at every try.
            ProgrammingError: a column exists by now. It is not ours, so it gets no comment.
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
            OperationalError: the table was in use at every try.
        """
        self._alter([f"DROP COLUMN IF EXISTS {_quoted(name)}" for name in names])

    def _alter(
        self, changes: Sequence[str], params: Sequence[Any] = (), then: Sequence[str] = ()
    ) -> None:
        if changes:
            # The name is not a parameter's.
            name = self.root.name.replace("%", "%%")
            self._briefly(f"ALTER TABLE {name} {', '.join(changes)}", params, then)

    def run(self, statement: str) -> None:
        """Run a statement that needs the table for itself for a moment.

        Raises:
            OperationalError: the table was in use at every try.
        """
        self._briefly(statement)

    def build_indexes(self) -> None:
        """Build the missing indexes concurrently; those of a partitioned table on each partition.
        An index that an interrupted build has left is built again.
        """
        with self._without_timeouts():
            for place in range(len(self._indexes(self.root))):
                self._build(self.root, place)

    def drop_indexes(self) -> None:
        """Drop the existing indexes."""
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
            # It cannot be built concurrently, but without the partitions it takes no time.
            if is_valid is None:
                self._briefly(self._creating(index, "INDEX", f"ONLY {relation.name}"))
            self._build_on_partitions(relation, place)
            return
        if is_valid is False:
            self._drop_concurrently(name)
        if is_valid:
            return
        # Without IF NOT EXISTS, which would accept another table's index of this name.
        if self._is_empty(relation):
            self._briefly(self._creating(index, "INDEX", relation.name))
        else:
            statement = self._creating(index, "INDEX CONCURRENTLY", relation.name)
            self.editor.execute(statement, params=None)

    def _is_empty(self, relation: _Relation) -> bool:
        """Return whether nothing was ever written to it, so that nobody has to wait for a plain
        build, which itself waits for nobody. What is only printed is for any table.
        """
        if self.editor.collect_sql:
            return False
        # Not by a look for rows: policies may hide them.
        size = "SELECT pg_relation_size(to_regclass(%(table)s)) = 0"
        return bool(fetch(self.editor.connection, size, {"table": relation.name})[0][0])

    def _drop_concurrently(self, index: str) -> None:
        self.editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", params=None)

    def _creating(self, index: models.Index, kind: str, on: str) -> str:
        statement = index.create_sql(self.model, self.editor)
        return statement.template.replace("INDEX", kind, 1) % {**statement.parts, "table": on}

    def _build_on_partitions(self, relation: _Relation, place: int) -> None:
        whole = relation.quoted(self._indexes(relation)[place].name)
        for partition, has_valid_index in self._partitions(relation, whole):
            # A partition that was added meanwhile has its index already.
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
        """Return whether an index of this name is valid, or None if the table has none."""
        rows = fetch(
            self.editor.connection,
            sql.render("statements/index_is_valid"),
            {"index": index, "table": relation.name},
        )
        return rows[0][0] if rows else None

    def _briefly(
        self, statement: str, params: Sequence[Any] | None = None, then: Sequence[str] = ()
    ) -> None:
        """Send a statement that needs an exclusive lock until it gets the lock, and the following
        ones in the same transaction.
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
        # Somebody else runs what sqlmigrate prints, without this transaction.
        begin, commit = (["BEGIN"], ["COMMIT"]) if self.editor.collect_sql else ([], [])
        limits = dict.fromkeys(self._limits, "0") | {"lock_timeout": LOCK_TIMEOUT}
        with transaction.atomic(using=self.editor.connection.alias):
            for each in begin:
                self.editor.execute(each, params=None)
            self._set("SET LOCAL", limits)
            self.editor.execute(statement, params)
            for each in [*then, *commit]:
                self.editor.execute(each, params=None)

    @contextmanager
    def _without_timeouts(self) -> Iterator[None]:
        """A concurrent operation waits for older transactions, and leaves an invalid index if it is
        interrupted. So the role's timeouts must not end it.
        """
        before = {
            name: fetch(self.editor.connection, f"SELECT current_setting('{name}')", {})[0][0]
            for name in self._limits
        }
        self._set("SET", dict.fromkeys(self._limits, "0"))
        try:
            yield
        finally:
            self._set("SET", before)

    @property
    def _limits(self) -> tuple[str, ...]:
        """The limits that a role may have, as the server knows them."""
        pg_version = getattr(self.editor.connection, "pg_version", 0)
        newer = ("transaction_timeout",) if pg_version >= TRANSACTION_TIMEOUT_SINCE else ()
        return ("lock_timeout", "statement_timeout", *newer)

    def _set(self, how: str, limits: Mapping[str, str]) -> None:
        for name, value in limits.items():
            self.editor.execute(f"{how} {name} = '{value}'", params=None)
