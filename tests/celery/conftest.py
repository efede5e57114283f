"""A database that keeps what is committed, and a Celery app of a test's own on a real broker."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from celery import Celery

from jobreaper.celery import declared, kept
from jobreaper.models import Job
from jobreaper.queue import unhandled
from tests.celery.brokers import BROKERS, Queue, broker_url, celery_app, declare
from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

Run = Callable[..., Any]


def wait_sec(jobs: Rows, pk: Any) -> float:
    """Return how far ahead the job's next attempt is."""
    return float((jobs.row(pk)["next_earliest_run_at"] - jobs.now()).total_seconds())


@pytest.fixture(scope="session")
def database_url(foreign_client: psycopg.Connection[Any]) -> str:
    """The test database as a DATABASE_URL, for processes that outlive a test."""
    info = foreign_client.info
    parts = {**info.get_parameters(), "password": info.password}
    return "postgresql:///?" + urlencode(parts, quote_via=quote)


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")


@pytest.fixture
def media(sql: Sql) -> Rows:
    """The host project's table, whose keys are numbers."""
    return Rows(sql, "jobs")


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> str:
    """The URL of each broker there is."""
    return broker_url(request.param)


@pytest.fixture
def app(broker: str) -> Iterator[Celery]:
    """A Celery app of the test's own, on each broker."""
    with celery_app(broker) as app:
        yield app
        Queue(app).delete()


@pytest.fixture
def one_app() -> Iterator[Celery]:
    """A Celery app of the test's own, for what no message passes through."""
    with celery_app(broker_url("redis")) as app:
        yield app
        Queue(app).delete()


@pytest.fixture
def queue(app: Celery) -> Queue:
    """The app's queue."""
    return Queue(app)


@pytest.fixture
def run(one_app: Celery) -> Run:
    """Make a job and run it with a function; return its key."""

    def run_it(
        function: Callable[..., Any], raises: Any = None, max_attempts: int = 3, **options: Any
    ) -> Any:
        # Not sent: this test is the worker.
        job = Job(type="mail", stage="mail", max_attempts=max_attempts)
        Job.objects.bulk_create([job])
        task = declare(one_app, function, **options)
        if raises is None:
            task(job.pk)
        else:
            with pytest.raises(raises):
                task(job.pk)
        return job.pk

    return run_it


@pytest.fixture(autouse=True)
def nothing_said_before() -> None:
    """What the dispatcher says once, it says in this test."""
    unhandled._reported.clear()
    declared.complain.cache_clear()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """No connection that a task of this test has put by is left."""
    yield
    kept.close_idle()
