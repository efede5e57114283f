"""A role whose connections are few. The cluster is shared by tests that run side by side."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.rows import Sql
from tests.waiting import until

ROLE = f"few_in_{os.getpid()}"
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE usename = %s AND backend_type = 'client backend'"

Limit = Callable[[int], None]


@contextmanager
def limited_role(sql: Sql) -> Iterator[Limit]:
    """Create the role, with what a worker needs; return what sets its limit."""
    schema_rights = f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}"
    for statement in (
        f"CREATE ROLE {ROLE} LOGIN",
        schema_rights,
        schema_rights.replace("TABLES", "SEQUENCES"),
    ):
        sql(statement)

    def limit(most: int) -> None:
        sql(f"ALTER ROLE {ROLE} CONNECTION LIMIT {most}")

    try:
        yield limit
    finally:
        until(lambda: not sql(SESSIONS, ROLE))
        sql(f"DROP OWNED BY {ROLE}")
        sql(f"DROP ROLE {ROLE}")
