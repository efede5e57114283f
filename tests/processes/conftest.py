"""Short leases, real children, and a ledger that counts what was done."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobreaper import conf
from tests.committed import transactional_db  # noqa: F401
from tests.processes.children import Child
from tests.proxy import Proxy
from tests.waiting import until

LEASE_SEC = 1.5

Start = Callable[..., Child]
Row = dict[str, Any]
Sql = Callable[..., list[Row]]
Ledger = Callable[[], list[Row]]
ReadRow = Callable[[int], Row]
ReadEvents = Callable[[int], list[str]]


def beats(read: ReadRow, pk: int) -> bool:
    """Whether a heartbeat comes within the time that one may take."""
    before = read(pk)["last_heartbeat_at"]
    return until(lambda: bool(read(pk)["last_heartbeat_at"] > before))


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leases that run out in a test's time, here and in every process started from here."""
    # A test that sets them too does so with the same fixture: two would undo each other's.
    monkeypatch.setenv("DEFAULT_LEASE_SEC", str(LEASE_SEC))
    monkeypatch.setenv("HEARTBEAT_SEC", "0.4")
    monkeypatch.setenv("REAPER_INTERVAL_SEC", "0.5")
    monkeypatch.setenv("JOB_RETRY_BACKOFF_MS_BASE", "1")
    monkeypatch.setenv("JOB_RETRY_BACKOFF_MS_MAX", "1")
    conf.reset()
    yield
    monkeypatch.undo()
    conf.reset()


@pytest.fixture
def ledger(sql: Sql) -> Iterator[Ledger]:
    """The effects of all jobs so far."""
    sql("CREATE TABLE ledger (job_id bigint, epoch bigint, worker text)")
    yield lambda: sql("SELECT * FROM ledger ORDER BY job_id, epoch")
    sql("DROP TABLE ledger")


@pytest.fixture
def start(database_url: str, ledger: Ledger, tmp_path: Path) -> Iterator[Start]:
    """Start a Python process on the test database; all are gone when the test ends."""
    children: list[Child] = []
    numbers = itertools.count()

    def run(*arguments: str, **environment: str) -> Child:
        child = Child(
            arguments,
            {
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DATABASE_URL": database_url,
                **environment,
            },
            tmp_path / f"child-{next(numbers)}.log",
        )
        children.append(child)
        return child

    yield run
    for child in children:
        child.end()


@pytest.fixture
def start_worker(start: Start) -> Start:
    """Start a worker that takes orders; see tests/processes/worker.py."""

    def run(**environment: str) -> Child:
        worker = start("-m", "tests.processes.worker", **environment)
        assert worker.answer() == "ready"
        return worker

    return run


@pytest.fixture
def job(sql: Sql) -> int:
    """A queued job."""
    [row] = sql("INSERT INTO jobs (stage) VALUES ('clip') RETURNING id")
    return int(row["id"])


@pytest.fixture
def row(sql: Sql) -> ReadRow:
    """A job as it is now, with its lease judged by the database's clock."""

    def read(pk: int) -> Row:
        [found] = sql(
            "SELECT *, lease_expires_at < statement_timestamp() AS expired FROM jobs WHERE id = %s",
            pk,
        )
        return found

    return read


@pytest.fixture
def events(sql: Sql) -> ReadEvents:
    """The types of a job's events, oldest first."""

    def read(pk: int) -> list[str]:
        found = sql("SELECT type FROM job_events WHERE job_id = %s ORDER BY id", str(pk))
        return [event["type"] for event in found]

    return read


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()
