"""``JobTable``: a table of jobs and its statements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from psycopg.sql import SQL

from jobreaper.exceptions import NotLeasable
from jobreaper.tables import statements
from jobreaper.tables.shape import Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class JobTable(Shape):
    """One job table. ``register()`` creates it and explains the parts."""

    def statement(self, name: str) -> str:
        """Return the text of the statement ``<name>`` of ``sql/statements/`` for this table.

        Raises:
            NotLeasable: it needs columns that the table does not have.
        """
        if not self.can_be_leased:
            raise NotLeasable(self.name, self.missing)
        if name not in self._statements:
            self._statements[name] = statements.leased(self, name)
        return self._statements[name]

    def limited_statement(self, name: str) -> str:
        """Return a claim or dispatch that keeps each stage to its ``max_running``.

        Raises:
            NotLeasable: it needs columns that the table does not have.
        """
        if not self.can_be_leased:
            raise NotLeasable(self.name, self.missing)
        if name not in self._limited_statements:
            self._limited_statements[name] = statements.limited(self, name)
        return self._limited_statements[name]

    @cached_property
    def _statements(self) -> dict[str, str]:
        return {}

    @cached_property
    def _limited_statements(self) -> dict[str, str]:
        return {}

    @cached_property
    def converts_keys(self) -> bool:
        """Whether Python has keys otherwise than the database."""
        as_read = statements.key_as_read(self, SQL("id"))
        return bool(self._key_converters or as_read.as_string(None))

    @cached_property
    def reap_statement(self) -> str:
        """One batch of a pass."""
        return statements.one_pass(self)

    @cached_property
    def reap_dry_run_statement(self) -> str:
        """The verdicts of a pass, without locks."""
        return statements.dry_run(self)

    @cached_property
    def oldest_due_age_statement(self) -> str:
        """How long the oldest due job has waited, in a table with leases."""
        return statements.oldest_due_age(self)

    @cached_property
    def scrape_statement(self) -> str:
        """The state of the table, for the metrics."""
        return statements.scrape(self)

    @cached_property
    def facts_statement(self) -> str:
        """How some jobs stand, for a person who asks."""
        return statements.job_facts(self)
