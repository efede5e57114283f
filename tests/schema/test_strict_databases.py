"""Databases in which PL/pgSQL is strict, as developers and their DBAs set it."""

import pytest
from django.db import connection

from jobreaper.schema import functions
from jobreaper.tables import job_tables
from tests.rows import Rows, Sql
from tests.schema.test_hostile_overloads import VERBS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_before")]

STRICT = {
    "plpgsql.extra_errors": "all",
    "plpgsql.variable_conflict": "error",
    "plpgsql.check_asserts": "on",
    "check_function_bodies": "on",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
}


@pytest.fixture(autouse=True)
def strict(as_before: None, sql: Sql) -> None:
    # PL/pgSQL has to be there before its settings.
    sql("LOAD 'plpgsql'")
    for name, value in STRICT.items():
        sql("SELECT set_config(%s, %s, false)", name, value)
    with connection.cursor() as cursor:
        cursor.execute("LOAD 'plpgsql'")
        for name, value in STRICT.items():
            cursor.execute("SELECT set_config(%s, %s, false)", [name, value])
    for made in functions.of_package(connection):
        made.create(connection)
    for table in job_tables():
        for made in functions.of_table(table, connection):
            made.create(connection)
    connection.close()


@pytest.mark.parametrize("verb", VERBS)
def test_the_functions_are_installed_and_work(verb: str, jobs: Rows, sql: Sql) -> None:
    VERBS[verb](jobs, sql)
    assert sql("SELECT error FROM jobreaper_passes WHERE error IS NOT NULL") == []
