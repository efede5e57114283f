"""`manage.py reap` as a process of its own, and jobs for it to reap."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.committed import transactional_db  # noqa: F401
from tests.rows import Rows, Sql

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    """What a process needs to find the test database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url,
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Run `manage.py reap` to its end."""

    def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", "reap", *options],
            cwd=ROOT,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    return Rows(sql)


@pytest.fixture
def asr_jobs(sql: Sql) -> Rows:
    return Rows(sql, "asr_jobs")


@pytest.fixture
def server_started_after_a_pass(sql: Callable[..., list[dict[str, Any]]]) -> None:
    """A pass is on record from before the server's start."""
    sql(
        "INSERT INTO jobreaper_passes (started_at, trigger, reaper, counts)"
        " VALUES (pg_postmaster_start_time() - interval '1 hour', 'command', 'r', '{}')"
    )
