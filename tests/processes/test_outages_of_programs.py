"""What a network and a restart of PostgreSQL cost `manage.py work` and the worker in JavaScript."""

import json
import time
from collections.abc import Callable

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import claim, conf, enqueue, reap
from jobreaper.presence.watcher import take_back_from_gone
from jobreaper.schema import functions
from jobreaper.states import EventType
from project.embedded import Postgres
from project.media.models import Job
from tests.processes.children import Child
from tests.processes.conftest import ReadEvents, ReadRow, Sql, Start
from tests.processes.node import installed_worker, start_node, variables
from tests.proxy import Proxy
from tests.rows import Rows
from tests.waiting import until

__all__ = ["installed_worker", "start_node"]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]

PATIENCE_SEC = 60.0
WORKERS = 3
OUTAGE_SEC = 3.0
GRACE_SEC = 6
QUEUE = {"DJANGO_SETTINGS_MODULE": "tests.queue.settings"}


def nothing_is_taken_for(seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        assert take_back_from_gone(connection) == 0
        result = reap()
        assert (result.requeued, result.failed) == (0, 0)
        time.sleep(0.2)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that outlast the outage, and a presence that does not."""
    monkeypatch.setenv("DEFAULT_LEASE_SEC", "300")
    monkeypatch.setenv("PRESENCE_GRACE_SEC", "1")
    monkeypatch.setenv("RECOVERY_GRACE_SEC", "120")
    conf.reset()


@pytest.mark.parametrize("outage", ["reset", "hang", "cut"])
def test_an_outage_costs_no_worker_of_manage_py_its_job(
    outage: str, patient: None, start: Start, proxy: Proxy, sql: Sql
) -> None:
    jobs = Rows(sql, "jobreaper_jobs")
    ids = [enqueue("until-told").pk for _ in range(WORKERS)]
    workers = [start("manage.py", "work", DATABASE_URL=proxy.url, **QUEUE) for _ in ids]
    for worker in workers:
        assert worker.answer(PATIENCE_SEC).startswith("began ")
    until(lambda: len(sql("TABLE jobreaper_workers")) == WORKERS)
    before = jobs.all()
    getattr(proxy, outage)()
    nothing_is_taken_for(OUTAGE_SEC)
    proxy.mend()

    def has_beaten(pk: object) -> bool:
        return bool(jobs.row(pk)["last_heartbeat_at"] > before[pk]["last_heartbeat_at"])

    until(lambda: all(map(has_beaten, ids)), PATIENCE_SEC)
    nothing_is_taken_for(1)
    for worker in workers:
        worker.say("end")
    until(lambda: {jobs.row(pk)["status"] for pk in ids} == {"success"}, PATIENCE_SEC)
    rows = [jobs.row(pk) for pk in ids]
    assert {(row["attempt_count"], row["lease_epoch"]) for row in rows} == {(1, 1)}


def held(reaper: Child) -> bool | None:
    """Whether the next pass is held; None where it could not reach the database."""
    result = json.loads(reaper.answer(PATIENCE_SEC))
    return None if result["errors"] else bool(result["held"])


@pytest.fixture
def own_server(server: Postgres, start: Start) -> Callable[[str], Child]:
    """A server that the test may restart. Its reaper starts with a row in this table."""

    def reaping(insert: str) -> Child:
        where = {"DATABASE_URL": server.url, "RECOVERY_GRACE_SEC": str(GRACE_SEC), **QUEUE}
        assert start("manage.py", "migrate", **where).process.wait(PATIENCE_SEC) == 0
        with psycopg.connect(server.url) as client:
            client.execute(insert.encode())
        reaper = start("manage.py", "reap", "--loop", "--format", "json", **where)
        assert held(reaper) is False
        return reaper

    return reaping


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_restart_of_postgresql_costs_no_worker_of_manage_py_its_job(
    how: str, own_server: Callable[[str], Child], server: Postgres, start: Start
) -> None:
    reaper = own_server(
        "INSERT INTO jobreaper_jobs (id, type, stage)"
        " SELECT gen_random_uuid(), 'until-told', 'until-told' FROM generate_series(1, 2)"
    )
    workers = [
        start("manage.py", "work", "--no-housekeeping", DATABASE_URL=server.url, **QUEUE)
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.answer(PATIENCE_SEC).startswith("began ")
    server.stop(how)
    server.start()
    until(lambda: held(reaper) is True, PATIENCE_SEC)
    until(lambda: held(reaper) is False, PATIENCE_SEC)
    for worker in workers:
        worker.say("end")
    ended = "SELECT status, attempt_count, lease_epoch FROM jobreaper_jobs"
    with psycopg.connect(server.url, autocommit=True) as client:
        until(
            lambda: client.execute(ended).fetchall() == [("success", 1, 1)] * 2,
            PATIENCE_SEC,
        )


@pytest.fixture
def long_leases_of_clip(start_node: Start) -> None:
    with override_settings(JOBREAPER={"STAGES": {"clip": {"lease": "5m"}}}):
        functions.policies(connection).create(connection)


def enqueue_clip(sql: Sql, seconds: float) -> int:
    payload = json.dumps({"seconds": seconds})
    [row] = sql("INSERT INTO jobs (stage, payload) VALUES ('clip', %s) RETURNING id", payload)
    return int(row["id"])


def test_a_network_that_hangs_costs_the_worker_in_javascript_nothing(
    patient: None,
    start_node: Start,
    long_leases_of_clip: None,
    proxy: Proxy,
    sql: Sql,
    row: ReadRow,
) -> None:
    node = start_node(**variables(proxy.url))
    job = enqueue_clip(sql, 2 * OUTAGE_SEC)
    assert node.answer(PATIENCE_SEC) == f"claimed {job}"
    proxy.hang()
    nothing_is_taken_for(OUTAGE_SEC)
    proxy.mend()
    assert node.answer(PATIENCE_SEC) == f"finished {job}"
    assert (row(job)["status"], row(job)["lease_epoch"]) == ("success", 1)
    assert node.terminate() == 0


def test_a_worker_in_javascript_that_loses_its_connections_ends_and_another_goes_on(
    patient: None,
    start_node: Start,
    long_leases_of_clip: None,
    proxy: Proxy,
    sql: Sql,
    events: ReadEvents,
) -> None:
    """Without its database it is of no use."""
    node = start_node(**variables(proxy.url))
    job = enqueue_clip(sql, 600)
    assert node.answer(PATIENCE_SEC) == f"claimed {job}"
    other = start_node()
    proxy.reset()
    assert node.process.wait(PATIENCE_SEC) == 1
    until(lambda: take_back_from_gone(connection) == 1, PATIENCE_SEC)
    assert other.answer(PATIENCE_SEC) == f"claimed {job}"
    assert events(job) == [EventType.JOB_WORKER_LOST]


def test_after_a_restart_of_postgresql_another_goes_on_for_the_worker_in_javascript(
    start_node: Start, own_server: Callable[[str], Child], server: Postgres
) -> None:
    reaper = own_server(
        "INSERT INTO jobs (id, stage, payload) VALUES (1, 'clip', '{\"seconds\": 600}')"
    )
    node = start_node(**variables(server.url))
    assert node.answer(PATIENCE_SEC) == "claimed 1"
    server.stop("fast")
    assert node.process.wait(PATIENCE_SEC) == 1
    server.start()
    until(lambda: held(reaper) is True, PATIENCE_SEC)
    reaped = "SELECT status, attempt_count, reap_count FROM jobs"
    with psycopg.connect(server.url, autocommit=True) as client:
        until(
            lambda: client.execute(reaped).fetchall() == [("queued", 1, 1)],
            PATIENCE_SEC,
        )
    other = start_node(**variables(server.url))
    assert other.answer(PATIENCE_SEC) == "claimed 1"
    assert claim(Job, 1) is None
