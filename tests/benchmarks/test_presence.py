"""How soon a killed worker's job runs again, and what it costs to watch a thousand workers."""

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from jobreaper import conf, enqueue
from jobreaper.db import fetch
from jobreaper.identity import worker_id
from jobreaper.presence import statements
from jobreaper.presence.watcher import STILL_SEC
from project.embedded import Postgres
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import share
from tests.processes.children import Child
from tests.rows import Sql
from tests.waiting import until

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

KILLS = 100
WORKERS = 3
HERE = "SELECT worker FROM jobreaper_workers WHERE gone_at IS NULL"

IDLE = 1_000
LOOKS = 50
COUNT_SEC = 60


class Crew:
    """Workers with their default settings, one of which is killed now and then."""

    def __init__(self, database_url: str, directory: Path) -> None:
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
            "DATABASE_URL": database_url,
        }
        self._directory = directory
        self.workers: list[Child] = []

    def hire(self) -> None:
        log = self._directory / f"work-{time.monotonic_ns()}.log"
        self.workers.append(Child(["manage.py", "work"], self._environment, log))

    def who_began(self, key: object) -> Child:
        """Wait for the worker that runs the job."""
        return until(lambda: next((w for w in self.workers if began(w, key)), None), 60, 0.005)

    def lose(self, worker: Child) -> None:
        self.workers.remove(worker)
        worker.end()


def began(worker: Child, key: object) -> bool:
    return f"began {key}" in worker.lines_so_far()


@pytest.fixture
def crew(database_url: str, tmp_path: Path) -> Iterator[Crew]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DEFAULT_LEASE_SEC", "HEARTBEAT_SEC", "PRESENCE_GRACE_SEC"):
            patch.delenv(name, raising=False)
        crew = Crew(database_url, tmp_path)
        yield crew
        for worker in crew.workers:
            worker.end()


def test_from_a_kill_to_the_job_running_again(crew: Crew, sql: Sql, report: Report) -> None:
    taken = []
    for _ in range(KILLS):
        while len(crew.workers) < WORKERS:
            crew.hire()
        until(lambda: len(sql(HERE)) == WORKERS, timeout_sec=60)
        key = enqueue("until-told").pk
        victim = crew.who_began(key)
        # At any moment between two looks of the watcher, which may be the victim itself.
        time.sleep(random.uniform(0, 1))
        killed_at = time.monotonic()
        crew.lose(victim)
        successor = crew.who_began(key)
        taken.append(time.monotonic() - killed_at)
        successor.say("end")
    lease = conf.settings().policy(None).lease_sec
    report(
        f"{KILLS} workers killed in mid-job, leases of {lease:g} s: seconds until it runs again",
        [
            ("median", "p99", "maximum"),
            tuple(f"{share(taken, of):.2f}" for of in (0.5, 0.99, 1)),
        ],
    )
    assert share(taken, 0.99) < 5


@pytest.fixture
def many_idle(dsn: str, transactional_db: None) -> Iterator[None]:
    """Workers that hold their locks on two sessions each."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobreaper_workers (worker, kind, host, pid, version)"
            " SELECT 'idle:' || n, 'work', 'idle', n, '0' FROM generate_series(1, %s) AS n",
            [IDLE],
        )
        cursor.execute("ANALYZE jobreaper_workers")
    sessions = [psycopg.connect(dsn, autocommit=True) for _ in range(20)]
    for number, session in enumerate(sessions):
        for n in range(number // 2, IDLE, len(sessions) // 2):
            params = {"worker": f"idle:{n + 1}", "backend_pid": session.info.backend_pid}
            session.execute(statements.lock().encode(), params)
    yield
    for session in sessions:
        session.close()


def test_looking_at_many_idle_workers(many_idle: None, report: Report) -> None:
    connection.ensure_connection()
    params = {"backend_pid": connection.connection.info.backend_pid, "still_sec": STILL_SEC}
    rows: list[Sequence[str]] = [("", "ms to run", "ms to plan", "ms for the client")]
    for what, text, given in (
        ("look", statements.look(), {"worker": worker_id()}),
        ("ask whether to look", statements.elect(), params),
    ):
        spent: dict[str, list[float]] = {"Execution": [], "Planning": [], "client": []}
        for _ in range(LOOKS):
            explained = fetch(connection, f"EXPLAIN (ANALYZE, TIMING OFF) {text}", given)
            for (line,) in explained:
                if found := re.match(r"(Execution|Planning) Time: ([\d.]+) ms", line):
                    spent[found[1]].append(float(found[2]))
            began = time.perf_counter()
            fetch(connection, text, given)
            spent["client"].append((time.perf_counter() - began) * 1000)
        rows.append((what, *(f"{statistics.median(ms):.2f}" for ms in spent.values())))
    report(f"{IDLE:,} idle workers, each with its lock on two sessions; median of {LOOKS}", rows)


KINDS = {
    "look": r"looked AS MATERIALIZED",
    "ask whether to look": r"pg_try_advisory_lock\(",
    "say that it is here": r"INSERT INTO jobreaper_workers",
    "take the lock": r"pg_try_advisory_lock_shared\(",
}


def counted(server: Postgres) -> Counter[str]:
    """Count the statements of presence that the server has logged, by kind."""
    kinds: Counter[str] = Counter()
    for entry in re.split(r"^(?=\d{4}-\d\d-\d\d )", server.log.read_text(), flags=re.MULTILINE):
        if re.search(r"LOG:  (?:statement|execute )", entry):
            kinds[next((k for k, mark in KINDS.items() if re.search(mark, entry)), "")] += 1
    return kinds


def test_statements_of_idle_workers(server: Postgres, tmp_path: Path, report: Report) -> None:
    """Two workers, of which one looks, beside others that would look too."""
    where = {"DJANGO_SETTINGS_MODULE": "tests.queue.settings", "DATABASE_URL": server.url}
    migrate = Child(["manage.py", "migrate", "--verbosity", "0"], where, tmp_path / "migrate.log")
    assert migrate.process.wait(60) == 0
    migrate.end()
    with ExitStack() as stack:
        for n in range(2):
            worker = Child(["manage.py", "work"], where, tmp_path / f"work-{n}.log")
            stack.callback(worker.end)
        others = [
            stack.enter_context(psycopg.connect(server.url, autocommit=True)) for _ in range(60)
        ]
        until(lambda: len(others[0].execute(HERE).fetchall()) == 2)
        for session in others:
            params = {"backend_pid": session.info.backend_pid, "still_sec": STILL_SEC}
            session.execute(statements.elect().encode(), params)
        others[0].execute("ALTER SYSTEM SET log_statement = 'all'")
        others[0].execute("SELECT pg_reload_conf()")
        before = counted(server)
        time.sleep(COUNT_SEC)
        found = counted(server) - before
    report(
        f"Statements of two idle workers in {COUNT_SEC} s, beside {len(others)} that would look",
        [("", "statements"), *((kind, found[kind]) for kind in KINDS)],
    )
