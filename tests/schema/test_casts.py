"""Casts that somebody has made implicit, as before PostgreSQL 8.3 or for programs from MySQL. They
hold in the whole database, whatever the search_path, and make operators ambiguous.
"""

from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from jobreaper import cancel, claim, enqueue, enqueue_many, fail, prune, reap, requeue, run_now
from jobreaper.metrics.readings import read
from jobreaper.queue.worker import Worker
from jobreaper.schema import functions
from jobreaper.tables import job_tables, table_of
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.schema.test_hostile_overloads import VERBS, lost

pytestmark = pytest.mark.usefixtures("as_before", "casts")

IMPLICIT = [
    *(f"({kind} AS text)" for kind in ("int2", "int4", "int8", "numeric", "bool", "uuid")),
    *(f"({kind} AS text)" for kind in ("timestamptz", "interval", "jsonb")),
    *(f"(text AS {kind})" for kind in ("int4", "int8", "uuid")),
]


@pytest.fixture
def casts(sql: Sql) -> Iterator[None]:
    made = []
    try:
        for cast in IMPLICIT:
            # A cast of PostgreSQL's own stays as it is.
            exists = sql(
                "SELECT 1 FROM pg_cast WHERE castsource = %s::regtype AND casttarget = %s::regtype",
                *cast.strip("()").split(" AS "),
            )
            if not exists:
                sql(f"CREATE CAST {cast} WITH INOUT AS IMPLICIT")
                made.append(cast)
        yield
    finally:
        for cast in made:
            sql(f"DROP CAST {cast}")


def test_they_make_operators_ambiguous(sql: Sql) -> None:
    with pytest.raises(Exception, match="operator is not unique"):
        sql("SELECT 'sql:' || pg_backend_pid()")


@pytest.mark.parametrize("verb", VERBS)
def test_the_functions_work_all_the_same(jobs: Rows, sql: Sql, verb: str) -> None:
    VERBS[verb](jobs, sql)
    assert sql("SELECT error FROM jobreaper_passes WHERE error IS NOT NULL") == []


def test_they_can_be_installed(sql: Sql) -> None:
    for table in job_tables():
        for made in functions.of_table(table, connection):
            made.create(connection)


def finish(jobs: Rows) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    lease.heartbeat()
    lease.save_state({"n": 1})
    lease.job.save()
    lease.finish()


def fail_attempt(jobs: Rows) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    assert lease.fail("E1") is True


def release(jobs: Rows) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    lease.release()


def by_hand(jobs: Rows) -> None:
    keys = [jobs.plant() for _ in range(3)]
    assert len(cancel(Job, keys, by="ann")) == 3
    assert len(requeue(Job, keys, by="ann")) == 3
    jobs.set(keys[0], next_earliest_run_at="2999-01-01")
    assert run_now(Job, keys, by="ann") == keys[:1]
    assert len(fail(Job, keys, by="ann")) == 3


def a_pass(jobs: Rows) -> None:
    lost(jobs)
    assert reap(hold=False).all_errors == []
    assert reap(dry_run=True).all_errors == []
    assert prune().errors == []


def a_queue(jobs: Rows) -> None:
    enqueue("mail", dedupe_key="one")
    enqueue("mail", dedupe_key="one")
    enqueue_many([{"payload": {"n": 1}}, {"payload": {"n": 2}}], type="mail")
    Worker(types=["none"], listen=False).run(once=True)


def metrics(jobs: Rows) -> None:
    assert read(table_of(Job).connection(), job_tables()).errors == []


@pytest.mark.parametrize("verb", [finish, fail_attempt, release, by_hand, a_pass, a_queue, metrics])
def test_what_python_sends_works_all_the_same(jobs: Rows, verb: Callable[[Rows], None]) -> None:
    verb(jobs)
