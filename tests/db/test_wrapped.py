"""Wrappers that other packages put around each statement, such as those of django-pgtrigger's
``ignore()`` and django-pghistory's ``context()``: they set a variable for the triggers before it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobreaper import reap
from jobreaper.schema import functions
from jobreaper.tables import job_tables, table_of
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.schema.conftest import jobs
from tests.schema.test_casts import a_pass, a_queue, by_hand, fail_attempt, finish, metrics, release

__all__ = ["jobs"]

pytestmark = pytest.mark.usefixtures("as_before")

SET = "SELECT set_config('app.ignore', %s, true); "


def _to_the_last(cursor: Any) -> Any:
    while cursor is not None and cursor.nextset():
        pass
    return cursor


def by_position(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
    given = ["{some}", *(params or ())]
    return _to_the_last(execute(SET + statement, given, many, context))


def by_name(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
    if not isinstance(params, dict):
        return by_position(execute, statement, params, many, context)
    given = {**params, "their_own": "{some}"}
    own = SET.replace("%s", "%(their_own)s")
    return _to_the_last(execute(own + statement, given, many, context))


def untouched(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
    return execute(statement, params, many, context)


WRAPPERS = pytest.mark.parametrize("wrapper", [by_position, by_name, untouched])


@WRAPPERS
@pytest.mark.parametrize("verb", [finish, fail_attempt, release, by_hand, a_pass, a_queue, metrics])
def test_what_is_sent_can_be_wrapped(
    jobs: Rows, verb: Callable[[Rows], None], wrapper: Callable[..., Any]
) -> None:
    with connection.execute_wrapper(wrapper):
        verb(jobs)


@WRAPPERS
def test_rows_that_cannot_be_written_are_passed_too(
    jobs: Rows, sql: Sql, wrapper: Callable[..., Any]
) -> None:
    _, good = jobs.plant_expired(stage="bad"), jobs.plant_expired()
    sql("ALTER TABLE jobs ADD CONSTRAINT refused CHECK (stage <> 'bad') NOT VALID")
    try:
        with connection.execute_wrapper(wrapper):
            result = reap([Job], hold=False)
    finally:
        sql("ALTER TABLE jobs DROP CONSTRAINT refused")
    assert result.requeued_ids == {"jobs": [good]}
    assert len(result.all_errors) == 1


@WRAPPERS
def test_functions_are_installed_as_they_are(wrapper: Callable[..., Any]) -> None:
    with connection.execute_wrapper(wrapper):
        for made in functions.of_table(table_of(Job), connection):
            made.create(connection)
    assert functions.drifted(connection, job_tables()) == []
