"""A network that is away silences all workers at once: it costs none of them its job."""

from collections.abc import Callable

import pytest
from django.db import connection

from jobreaper import conf, reap
from jobreaper.models import ReaperPass
from jobreaper.schema import functions
from jobreaper.states import EventType, Status
from jobreaper.tables import table_of
from project.media.models import Job
from tests.processes.children import Child
from tests.processes.conftest import ReadEvents, ReadRow, Sql, Start, beats
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

WORKERS = 3

Crew = dict[int, Child]


@pytest.fixture
def crew(start_worker: Start, proxy: Proxy, sql: Sql, row: ReadRow) -> Crew:
    """Workers behind the proxy, by the job that each holds."""
    found = {}
    for _ in range(WORKERS):
        [job] = sql("INSERT INTO jobs (stage) VALUES ('clip') RETURNING id")
        found[job["id"]] = start_worker(DATABASE_URL=proxy.url)
        assert found[job["id"]].ask("claim", job["id"]) == "claimed"
    assert all(beats(row, pk) for pk in found)
    return found


def grace(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setenv("RECOVERY_GRACE_SEC", str(seconds))
    # For the reaper only: the last beats lie so close together on a busy machine too.
    monkeypatch.setenv("HEARTBEAT_SEC", "5")
    monkeypatch.setenv("DEFAULT_LEASE_SEC", "60")
    conf.reset()


def install() -> None:
    for made in functions.of_table(table_of(Job), connection):
        made.create(connection)


def all_expired(row: ReadRow, crew: Crew) -> Callable[[], bool]:
    return lambda: all(row(pk)["expired"] for pk in crew)


def test_an_outage_costs_no_worker_its_job(
    proxy: Proxy,
    crew: Crew,
    row: ReadRow,
    events: ReadEvents,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    grace(monkeypatch, 600)
    request.addfinalizer(install)
    request.addfinalizer(conf.reset)
    request.addfinalizer(monkeypatch.undo)
    install()
    proxy.hang()
    until(all_expired(row, crew))
    result = reap([Job])
    assert str(result.held_reason).startswith("3 of 3 workers fell silent"), result
    assert sql("SELECT * FROM jobs_reap()") == []
    assert {row(pk)["status"] for pk in crew} == {Status.PROCESSING}

    proxy.mend()
    until(lambda: not any(row(pk)["expired"] for pk in crew))
    result = reap([Job])
    assert (result.held_reason, result.requeued, result.failed) == (None, 0, 0)
    for pk, worker in crew.items():
        assert worker.ask("finish") == "finished"
        assert events(pk) == [EventType.JOB_FINISHED]


@pytest.mark.parametrize("outage", ["hang", "cut"])
def test_a_disaster_costs_one_grace(
    outage: str, proxy: Proxy, crew: Crew, row: ReadRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace(monkeypatch, 1)
    getattr(proxy, outage)()
    until(all_expired(row, crew))
    assert reap([Job]).held
    result = until(lambda: next((one for one in [reap([Job])] if not one.held), None))
    assert sorted(result.requeued_ids["jobs"]) == sorted(crew)
    held = ReaperPass.objects.filter(held=True)
    assert held.exclude(silent_until=None).count() == 1
    assert reap([Job], hold=False).requeued == 0
