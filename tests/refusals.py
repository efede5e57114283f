"""Queued rows that no UPDATE can write, in each way that people have met."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.rows import Sql

# Each refuses the rows whose payload is bad.
WAYS = {
    "check": "ALTER TABLE {0} ADD CONSTRAINT refused CHECK (NOT payload ? 'bad') NOT VALID",
    "trigger": "CREATE TRIGGER refuse BEFORE UPDATE ON {0} FOR EACH ROW"
    " WHEN (OLD.payload ? 'bad') EXECUTE FUNCTION refuse()",
    "failed assertion": "CREATE TRIGGER refuse BEFORE UPDATE ON {0} FOR EACH ROW"
    " WHEN (OLD.payload ? 'bad') EXECUTE FUNCTION refuse('assert')",
    "suppressing trigger": "CREATE TRIGGER refuse BEFORE UPDATE ON {0} FOR EACH ROW"
    " WHEN (OLD.payload ? 'bad') EXECUTE FUNCTION refuse('suppress')",
    "deferred trigger": "CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON {0}"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    " WHEN (OLD.payload ? 'bad') EXECUTE FUNCTION refuse()",
}
# The protocol's own counters; a mark of a dispatch leaves them alone.
OF_COUNTERS = {
    "counter": "UPDATE {0} SET lease_epoch = 9223372036854775807 WHERE payload ? 'bad'",
}


@contextmanager
def refusing(sql: Sql, table: str, way: str) -> Iterator[None]:
    """Let no row of the table be written whose payload is bad."""
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF TG_ARGV[0] = 'suppress' THEN RETURN NULL; END IF;"
        " ASSERT TG_NARGS = 0; RAISE EXCEPTION 'not this one'; END $$"
    )
    sql((WAYS | OF_COUNTERS)[way].format(table))
    try:
        yield
    finally:
        sql(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS refused")
        sql("DROP FUNCTION refuse CASCADE")
        sql("DELETE FROM jobreaper_refused_rows")
