"""What the checks find in a database that is, or was, the target of logical replication."""

from collections.abc import Iterator

import pytest
from django.core.checks import Tags, run_checks
from django.db import IntegrityError, connection

from jobreaper import claim
from project.media.models import Job
from tests.rows import Rows, Sql

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql)


def told() -> list[str]:
    found = run_checks(tags=[Tags.database], databases=["default"])
    return [
        f"{message.id} {message.msg} {message.hint}"
        for message in found
        if message.id in ("jobreaper.W025", "jobreaper.W026")
    ]


@pytest.fixture
def subscription(sql: Sql) -> Iterator[str]:
    """A subscription without a publisher, whose tables are written down as a refresh would."""
    name = f"of_{connection.settings_dict['NAME']}"
    sql(
        f"CREATE SUBSCRIPTION {name} CONNECTION 'dbname=nowhere' PUBLICATION everything"
        " WITH (connect = false, slot_name = NONE)"
    )
    yield name
    sql(f"DROP SUBSCRIPTION {name}")


def test_a_subscription_that_writes_to_job_tables_is_told(subscription: str, sql: Sql) -> None:
    add = "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, {}, 'r'"
    add += " FROM pg_subscription WHERE subname = %s"
    assert told() == []
    sql(add.format("'django_session'::regclass"), subscription)
    assert told() == []
    for table in ("jobs", "job_events"):
        sql(add.format(f"'{table}'::regclass"), subscription)
    [message] = told()
    assert message.startswith(f"jobreaper.W025 The subscription {subscription!r} writes to ")
    assert '"job_events", "jobs"' in message


def test_sequences_that_a_switchover_left_behind_are_told_with_what_sets_them(
    jobs: Rows, sql: Sql
) -> None:
    """The rows are there as a subscriber has them: their keys came with them."""
    lease = claim(Job, jobs.plant())
    assert lease is not None
    assert told() == []
    sql("SELECT setval('job_events_id_seq', 1000)")
    sql("INSERT INTO job_events (id, job_id, data) VALUES (1001, 'x', '{}')")
    [message] = told()
    assert message.startswith("jobreaper.W026 The sequence job_events_id_seq in the database")
    with pytest.raises(IntegrityError):
        lease.finish()
    statement = message.partition(": an INSERT")[2].partition("SELECT ")[2].partition(";")[0]
    sql(f"SELECT {statement}")
    assert told() == []
    lease.finish()


def test_a_table_that_is_not_there_yet_stops_no_check(sql: Sql) -> None:
    sql("ALTER TABLE jobs RENAME TO away")
    try:
        assert told() == []
    finally:
        sql("ALTER TABLE away RENAME TO jobs")


def test_what_the_role_may_not_read_is_not_looked_at(sql: Sql) -> None:
    role = f"checks_{connection.settings_dict['NAME']}"
    sql(f"CREATE ROLE {role}")
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {role}")
        assert told() == []
    finally:
        connection.close()
        sql(f"DROP ROLE {role}")
