"""The trigger that guards the leases of one table: its statements, and how to drop it."""

from __future__ import annotations

import hashlib
from typing import Final

from psycopg.sql import SQL, Identifier, Literal

from jobreaper import sql
from jobreaper.exceptions import NotLeasable
from jobreaper.tables import JobTable

# PostgreSQL truncates a longer name.
LONGEST_NAME: Final = 63
SUFFIX: Final = "_guard_lease"


def creating(table: JobTable) -> str:
    """Return the statements that create or replace the guard of a table.

    Raises:
        NotLeasable: the table does not have the columns of a lease.
    """
    if not table.can_be_leased:
        raise NotLeasable(table.name, table.missing)
    function = _function(table)
    return sql.plain(
        "frozen/guard_lease",
        {
            "function": function,
            "trigger": Identifier(function._obj[-1]),
            "table": Identifier(*table.name_parts),
            "key": Literal(table.key_columns[0]),
            **{part: Identifier(table.columns[part]) for part in ("status", "lease_epoch")},
        },
    )


def dropping(table: JobTable) -> str:
    """Return the statement that drops the guard of a table, if it exists."""
    return SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(_function(table)).as_string(None)


def _function(table: JobTable) -> Identifier:
    *schema, base = table.name_parts
    name = f"{base}{SUFFIX}"
    if len(name.encode()) > LONGEST_NAME:
        digest = hashlib.sha256(base.encode()).hexdigest()[:8]
        room = LONGEST_NAME - len(f"_{digest}{SUFFIX}")
        name = f"{base.encode()[:room].decode(errors='ignore')}_{digest}{SUFFIX}"
    return Identifier(*schema, name)
