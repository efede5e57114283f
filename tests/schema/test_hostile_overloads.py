"""A role that may create functions in the schema of a table cannot have its own run by the reaper:
PostgreSQL takes the best match of the whole search_path, in whatever schema it is.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from jobreaper.schema import functions
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_before")]

# Each is a better match for what our functions call than the built-in one.
OVERLOADS = """
CREATE FUNCTION public.jsonb_build_object(text, text, text, text, text, jsonb, text, text)
    RETURNS jsonb LANGUAGE plpgsql AS {body};
CREATE FUNCTION public.evil(int, interval) RETURNS interval LANGUAGE plpgsql AS {body};
CREATE OPERATOR public.* (LEFTARG = int, RIGHTARG = interval, FUNCTION = public.evil);
CREATE FUNCTION public.evil(bigint, int) RETURNS bool LANGUAGE plpgsql AS {body};
CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = int, FUNCTION = public.evil);
CREATE FUNCTION public.evil(jsonb) RETURNS text LANGUAGE plpgsql AS {body};
CREATE FUNCTION public.array_length(jobs) RETURNS text LANGUAGE plpgsql AS {body};
CREATE FUNCTION public.round(int) RETURNS int LANGUAGE plpgsql AS {body};
""".format(body="$$ BEGIN RAISE 'the overload was called'; END $$")


@pytest.fixture
def hostile(role: str, sql: Sql) -> str:
    """Overloads by a role that may create in the schema of the table and owns nothing else."""
    sql(f"GRANT CREATE ON SCHEMA public TO {role}; SET ROLE {role}")
    sql(OVERLOADS)
    sql("RESET ROLE")
    return role


def lost(jobs: Rows) -> Any:
    """Plant a job whose lease ran out."""
    return jobs.plant(
        status="processing", locked_by="w", lease_expires_at="2020-01-01", claimed_at="2020-01-01"
    )


def claimed(jobs: Rows, sql: Sql) -> tuple[Any, int]:
    job = jobs.plant()
    [row] = sql("SELECT id, lease_epoch FROM jobs_claim('w', job_id => %s)", job)
    return row["id"], row["lease_epoch"]


VERBS: dict[str, Callable[[Rows, Sql], object]] = {
    "claim": claimed,
    "heartbeat": lambda jobs, sql: sql("SELECT jobs_heartbeat(%s, 'w', %s)", *claimed(jobs, sql)),
    "finish": lambda jobs, sql: sql("SELECT jobs_finish(%s, 'w', %s)", *claimed(jobs, sql)),
    "release": lambda jobs, sql: sql("SELECT jobs_release(%s, 'w', %s)", *claimed(jobs, sql)),
    "fail": lambda jobs, sql: sql(
        "SELECT jobs_fail(%s, 'w', %s, 'code', 'reason')", *claimed(jobs, sql)
    ),
    "reap": lambda jobs, sql: (lost(jobs), sql("SELECT * FROM jobs_reap()")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_overload_in_the_schema_of_the_table_is_not_called(
    hostile: str, jobs: Rows, sql: Sql, verb: str
) -> None:
    VERBS[verb](jobs, sql)
    told = sql("SELECT error FROM jobreaper_passes WHERE error IS NOT NULL")
    assert told == []


@pytest.mark.parametrize("path", ["", "SET search_path = public, pg_temp"])
def test_a_trigger_without_a_path_of_its_own_finds_what_it_names(
    jobs: Rows, sql: Sql, path: str
) -> None:
    sql(f"""
        CREATE TABLE audit (id int);
        CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql {path} AS
            $$ BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$;
        CREATE TRIGGER audit BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION audit()
    """)
    try:
        for made in functions.of_table(table_of(Job), connection):
            made.create(connection)
        claimed(jobs, sql)
        assert len(sql("SELECT id FROM audit")) == 1
        [row] = sql("SELECT proconfig FROM pg_proc WHERE proname = 'jobs_claim'")
        assert (", public," in row["proconfig"][0]) is not bool(path)
    finally:
        sql("DROP FUNCTION audit CASCADE; DROP TABLE audit")


def test_the_overloads_would_be_called_by_a_function_that_looks_there(
    hostile: str, jobs: Rows, sql: Sql
) -> None:
    sql("ALTER FUNCTION jobs_claim SET search_path = public")
    with pytest.raises(psycopg.errors.RaiseException, match="the overload was called"):
        claimed(jobs, sql)
