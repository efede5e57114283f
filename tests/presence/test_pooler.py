"""A lock on a pooler's connection means nothing: there, the lease alone decides."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections

from jobreaper import reap
from jobreaper.identity import local_clock
from jobreaper.models import Worker
from jobreaper.presence import standing
from jobreaper.presence.watcher import LONGEST_PAUSE_SEC, Watcher, take_back_from_gone
from jobreaper.states import WorkerState
from project.database import database_from_url
from tests.processes.conftest import ReadRow, Start
from tests.processes.pgbouncer import needs_pgbouncer, pgbouncer
from tests.rows import Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, needs_pgbouncer]

HELD = """
    SELECT mode, count(*) AS n FROM pg_locks
     WHERE locktype = 'advisory'
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
     GROUP BY mode
"""


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, dsn: str) -> Iterator[dict[str, str]]:
    """The environment of a process that reaches its database through a pooler."""
    with pgbouncer(dsn, request.param) as url:
        yield {"DATABASE_URL": url}


@pytest.fixture
def with_direct_alias(pooled: dict[str, str], database_url: str) -> dict[str, str]:
    """The same where the settings have an alias that connects directly."""
    return {
        **pooled,
        "DJANGO_SETTINGS_MODULE": "tests.presence.settings",
        "DIRECT_URL": database_url,
        "JOBREAPER_PRESENCE_DATABASE": "direct",
    }


def locks(sql: Sql) -> dict[str, int]:
    """How many advisory locks there are, by their mode."""
    return {row["mode"]: row["n"] for row in sql(HELD)}


def checked(start: Start, environment: dict[str, str]) -> str:
    """What `manage.py check` says of the database."""
    child = start("manage.py", "check", "--database", "default", **environment)
    assert child.process.wait(60) == 0
    return child.log


def test_the_lease_alone_decides_and_nothing_is_left_locked(
    pooled: dict[str, str],
    start: Start,
    start_worker: Start,
    job: int,
    row: ReadRow,
    sql: Sql,
) -> None:
    worker = start_worker(**pooled)
    assert worker.ask("claim", job) == "claimed"
    assert until(
        lambda: [found["is_direct"] for found in sql("TABLE jobreaper_workers")] == [False]
    )
    assert "jobreaper.W018" in checked(start, pooled)
    for _ in range(2):
        assert locks(sql) == {}
        assert take_back_from_gone(connection) == 0
        assert row(job)["status"] == "processing"
        [stands] = standing.with_state(Worker.objects.all())
        assert stands.state == WorkerState.HERE
        worker.kill()
    sql("UPDATE jobs SET lease_expires_at = now() - interval '1 s'")
    assert reap().requeued_ids["jobs"] == [job]


def test_with_an_alias_that_connects_directly_a_killed_worker_is_noticed(
    with_direct_alias: dict[str, str],
    start: Start,
    start_worker: Start,
    job: int,
    row: ReadRow,
    sql: Sql,
) -> None:
    worker = start_worker(**with_direct_alias)
    assert worker.ask("claim", job) == "claimed"
    assert until(lambda: [found["is_direct"] for found in sql("TABLE jobreaper_workers")] == [True])
    assert locks(sql) == {"ShareLock": 1}
    assert "jobreaper.W018" not in checked(start, with_direct_alias)
    start("manage.py", "reap", "--loop", **with_direct_alias)
    assert until(lambda: locks(sql).get("ExclusiveLock") == 1)
    assert row(job)["status"] == "processing"
    worker.kill()
    assert until(lambda: row(job)["status"] == "queued")
    [event] = sql("SELECT data FROM job_events WHERE type = 'job:worker_lost'")
    assert "sessions ended" in event["data"]["details"]["how"]


def test_many_behind_a_pooler_do_not_look_every_second(pooled: dict[str, str], sql: Sql) -> None:
    """None of them can be elected, so all of them look."""
    own = {**connection.settings_dict, **database_from_url(pooled["DATABASE_URL"])}
    connections.databases["pooled"] = own
    try:
        watcher = Watcher(["pooled"])
        began = local_clock()
        watcher.take_turn([])
        turn = watcher.next_turn([])
    finally:
        connections["pooled"].close()
        del connections["pooled"]
        del connections.databases["pooled"]
    assert turn is not None
    assert turn >= began + 0.75 * LONGEST_PAUSE_SEC
    assert locks(sql) == {}
