"""What a lease adds to a Celery task, on the same worker and broker in the same run."""

import re
import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.conf import settings

from project.celery import app
from project.embedded import Postgres
from tests.benchmarks import tasks
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import children_ns, sessions_ns
from tests.processes.children import Child
from tests.waiting import until

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600), pytest.mark.django_db(transaction=True)]

TASKS = 1_000
WARM_UP = 100
ROUNDS = 3
CHILDREN = 2
# More than there are tasks.
KEPT = 1_000_000

JOBS = """
    INSERT INTO jobs (stage, payload)
    SELECT 'noop', jsonb_build_object('sec', %s::float8) FROM generate_series(1, %s)
    RETURNING id"""

DONE = re.compile(r"^(?P<at>\S+ \S+) INFO .* succeeded in ", re.MULTILINE)

Sql = Callable[..., list[dict[str, Any]]]


@contextmanager
def worker(url: str, queue: str, log: Path, *options: str, **environment: str) -> Iterator[Child]:
    """A worker that takes what is in the queue by now."""
    quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "INFO")
    child = Child(
        ["-m", "celery", "-A", "project", "worker", "--queues", queue, *quiet, *options],
        {
            "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
            "DATABASE_URL": url,
            "CELERY_BROKER_URL": str(settings.CELERY_BROKER_URL),
            **environment,
        },
        log,
    )
    try:
        yield child
    finally:
        child.end()
        with app.connection_for_write() as connection:
            connection.SimpleQueue(queue).queue.delete()


def send(task: Any, arguments: list[int], queue: str | None = None) -> str:
    """Send a message for each argument to a queue, or to a new one; return the queue's name."""
    queue = queue or f"bench-{uuid.uuid4().hex}"
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for argument in arguments:
            app.send_task(task.name, args=[argument], queue=queue, producer=producer)
    return queue


def finished_at(child: Child) -> list[datetime]:
    """When each task ended, by the worker's log."""
    return [datetime.fromisoformat(found["at"]) for found in DONE.finditer(child.log)]


def wait_for(child: Child, tasks: int) -> None:
    until(lambda: len(finished_at(child)) == tasks, timeout_sec=120, every_sec=0.5)


class Price(NamedTuple):
    """What a task costs: time on the clock of a wall, and of the processors."""

    ms: float
    children_ms: float
    server_ms: float

    @property
    def processors_ms(self) -> float:
        """What the children and the server cost together."""
        return self.children_ms + self.server_ms


def price(
    task: Any, arguments: list[int], sql: Sql, url: str, log: Path, **environment: str
) -> Price:
    """Return what a task costs in a worker that has done ``WARM_UP`` of them before."""
    queue = send(task, arguments[:WARM_UP])
    with worker(url, queue, log, "--concurrency", str(CHILDREN), **environment) as child:
        wait_for(child, WARM_UP)
        children, server = children_ns(child.pid), sessions_ns(sql)
        send(task, arguments[WARM_UP:], queue)
        wait_for(child, len(arguments))
        ends = sorted(finished_at(child)[WARM_UP:])
        return Price(
            (ends[-1] - ends[0]).total_seconds() * 1000 / (len(ends) - 1),
            (children_ns(child.pid) - children) / len(ends) / 1e6,
            (sessions_ns(sql) - server) / len(ends) / 1e6,
        )


def test_overhead(sql: Sql, database_url: str, tmp_path: Path, report: Report) -> None:
    prices: dict[str, list[Price]] = defaultdict(list)
    for number in range(ROUNDS):
        numbers = list(range(WARM_UP + TASKS))
        for what, task, reuse in (
            ("plain", tasks.plain, 0),
            ("plain, one query", tasks.plain_with_a_query, 0),
            ("plain, two writes", tasks.plain_with_two_writes, 0),
            ("leased", tasks.leased, 0),
            ("plain, one query, connection kept", tasks.plain_with_a_query, KEPT),
            ("plain, two writes, connection kept", tasks.plain_with_two_writes, KEPT),
            ("leased, connection kept", tasks.leased, KEPT),
        ):
            arguments = numbers
            if task is tasks.leased:
                arguments = [row["id"] for row in sql(JOBS, 0, len(numbers))]
            log = tmp_path / f"{what} {number}.log"
            found = price(task, arguments, sql, database_url, log, DB_REUSE_MAX=str(reuse))
            prices[what].append(found)
    assert sql("SELECT DISTINCT status FROM jobs WHERE stage = 'noop'") == [{"status": "success"}]
    median = {
        what: Price(*map(statistics.median, zip(*found, strict=True)))
        for what, found in prices.items()
    }
    writes = median["plain, two writes, connection kept"]
    report(
        f"No-op tasks, prefork with {CHILDREN} children; medians of {ROUNDS} × {TASKS:,}, in ms",
        [
            ("", "tasks/s", "a task", "children", "PostgreSQL", "share of two writes, kept"),
            *(
                (
                    what,
                    f"{1000 / each.ms:,.0f}",
                    *(f"{ms:.2f}" for ms in each),
                    f"{writes.processors_ms / (each.processors_ms or 1):.2f}",
                )
                for what, each in median.items()
            ),
        ],
    )


# What each statement of the log is for; what comes first wins.
KINDS = {
    "claim": r"FROM claimed AS job",
    "finish": r"job:finished",
    "heartbeat": r"reachable AS MATERIALIZED",
    "timeouts alone": r"set_config\('lock_timeout'",
    "BEGIN and COMMIT": r"^(BEGIN|COMMIT)",
}


def statements(server: Postgres) -> Counter[str]:
    """Count the statements that the server has logged, by kind."""
    counted: Counter[str] = Counter()
    for entry in re.split(r"^(?=\d{4}-\d\d-\d\d )", server.log.read_text(), flags=re.MULTILINE):
        found = re.search(r"LOG:  (?:statement|execute [^:]+): (.*)", entry, re.DOTALL)
        if found:
            text = found[1]
            kinds = (kind for kind, mark in KINDS.items() if re.search(mark, text))
            counted[next(kinds, f"other: {text[:60]!r}")] += 1
    return counted


def test_statements(server: Postgres, tmp_path: Path, report: Report) -> None:
    where = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings", "DATABASE_URL": server.url}
    migrate = Child(["manage.py", "migrate", "--verbosity", "0"], where, tmp_path / "migrate.log")
    assert migrate.process.wait(60) == 0
    migrate.end()
    # Beside the tasks: in one process, each longer than four beats.
    cases = {
        "200 no-op jobs, prefork": (200, 0.0, ["--concurrency", str(CHILDREN)]),
        "20 jobs of 2 s at once, threads": (20, 2.0, ["--pool", "threads", "--concurrency", "20"]),
    }
    rows: dict[str, Counter[str]] = {}
    with psycopg.connect(server.url, autocommit=True) as client:
        client.execute("ALTER SYSTEM SET log_statement = 'all'")
        for what, (count, sec, options) in cases.items():
            jobs = [pk for (pk,) in client.execute(JOBS, [sec, count])]
            client.execute("SELECT pg_reload_conf()")
            queue = send(tasks.leased, jobs)
            before = statements(server)
            log = tmp_path / f"{what}.log"
            with worker(server.url, queue, log, *options, HEARTBEAT_SEC="0.5") as child:
                wait_for(child, count)
            rows[what] = statements(server) - before
    kinds = sorted({kind for counted in rows.values() for kind in counted})
    report(
        "Statements, HEARTBEAT_SEC=0.5",
        [("", *rows), *((kind, *(counted[kind] for counted in rows.values())) for kind in kinds)],
    )
    for what, (count, *_) in cases.items():
        assert (rows[what]["claim"], rows[what]["finish"]) == (count, count)
