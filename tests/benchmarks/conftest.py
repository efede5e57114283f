"""A large job table, and a way to say what was measured on it."""

import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.db import connection

from jobreaper import conf
from tests.committed import transactional_db  # noqa: F401
from tests.printing import print_table

ROWS = 1_000_000
EXPIRED = 100_000

FINISHED = """
INSERT INTO jobs (status, stage, attempt_count, lease_epoch, finished_at)
SELECT 'success', 'clip', 1, 1, now() FROM generate_series(1, %s)
"""
RUNNING = """
INSERT INTO jobs (status, stage, attempt_count, lease_epoch, locked_by, claimed_at,
                  last_heartbeat_at, lease_expires_at)
SELECT 'processing', 'clip', 1, 1, 'worker ' || n %% 100, now(), now(),
       now() + n * interval '1 millisecond' * %s
  FROM generate_series(1, %s) AS n
"""

Load = Callable[..., None]
Report = Callable[[str, Sequence[Sequence[object]]], None]


@pytest.fixture(autouse=True)
def time_enough() -> Iterator[None]:
    """A pass that takes as long as it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REAPER_INTERVAL_SEC", "3600")
        conf.reset()
        yield
    conf.reset()


@pytest.fixture(autouse=True)
def log_to_nowhere() -> Iterator[None]:
    """Writing the log is part of the price; what pytest does with it is not."""
    logger = logging.getLogger("jobreaper")
    with open(os.devnull, "w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        yield
        logger.propagate = True
        logger.removeHandler(handler)


@pytest.fixture
def load(transactional_db: None) -> Iterator[Load]:  # noqa: F811
    """Fill the table `jobs` anew: so many rows, of which some run, with leases that have run out or
    have not.
    """

    def run(rows: int = ROWS, *, expired: int = 0, live: int = 0) -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE jobs, job_events")
            cursor.execute(FINISHED, [rows - expired - live])
            cursor.execute(RUNNING, [-1, expired])
            cursor.execute(RUNNING, [1_000_000, live])
            cursor.execute("VACUUM (ANALYZE) jobs, job_events")
            cursor.execute("CHECKPOINT")

    yield run
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs, job_events")


@pytest.fixture
def report() -> Report:
    """Print a table: a title, a row of headings, rows."""

    return print_table


@pytest.fixture(scope="session", autouse=True)
def where(django_db_setup: None, django_db_blocker: Any) -> None:
    """Say once on what was measured."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version')")
        [(version,)] = cursor.fetchall()
    print(f"\nPostgreSQL {version}, {os.cpu_count()} cores, Python {platform.python_version()}")
