"""Sessions that prepare the protocol's statements."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from jobreaper import claim
from jobreaper.db import fetch, prepared
from jobreaper.models import Job
from jobreaper.states import Status

pytestmark = pytest.mark.django_db(transaction=True)

PREPARED = "SELECT statement FROM pg_prepared_statements"


@pytest.fixture(autouse=True)
def preparing() -> Iterator[None]:
    connection.ensure_connection()
    prepared.prepare_on(connection)
    yield
    connection.close()


def run_a_job() -> Any:
    [job] = Job.objects.bulk_create([Job(type="mail")])
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.finish()
    job.refresh_from_db()
    assert (job.status, job.attempt_count) == (Status.SUCCESS, 1)
    return lease.job


def statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(PREPARED)
        return [statement for (statement,) in cursor.fetchall()]


def test_a_claim_and_a_finish_are_prepared_once_each() -> None:
    for _ in range(prepared.THRESHOLD + 3):
        run_a_job()
    names = sorted(found.split(maxsplit=2)[1] for found in statements())
    assert names == ["attempt", "policies"]


@pytest.mark.parametrize(
    "change",
    [
        "DISCARD ALL",
        "ALTER TABLE jobreaper_jobs ALTER COLUMN org_id TYPE varchar",
    ],
)
def test_what_takes_a_prepared_statement_away_costs_no_job(change: str) -> None:
    for _ in range(prepared.THRESHOLD + 2):
        run_a_job()
    with connection.cursor() as cursor:
        cursor.execute(change)
    try:
        run_a_job()
        assert not prepared.prepares(connection)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobreaper_jobs ALTER COLUMN org_id TYPE text")


def test_a_callers_transaction_is_not_broken_by_what_is_gone() -> None:
    for _ in range(prepared.THRESHOLD + 2):
        fetch(connection, "SELECT %(n)s::int", {"n": 1})
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")
    with transaction.atomic():
        assert fetch(connection, "SELECT %(n)s::int", {"n": 1}) == [(1,)]


def test_a_parameter_whose_type_the_server_cannot_tell_is_sent_in_the_text() -> None:
    assert fetch(connection, "SELECT jsonb_build_array(%(of)s)->>0", {"of": "x"}) == [("x",)]


def test_a_statement_that_somebody_watches_is_not_prepared() -> None:
    seen = []

    def see(execute: Any, statement: str, *args: Any) -> Any:
        seen.append(statement)
        return execute(statement, *args)

    with connection.execute_wrapper(see):
        fetch(connection, "SELECT %(n)s %% 2", {"n": 3})
    assert len(seen) == 1
    assert fetch(connection, "SELECT %(n)s %% 2", {"n": 3}) == [(1,)]
