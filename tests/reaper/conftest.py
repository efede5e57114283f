"""What every test of the protocol has at hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper.db import retry
from jobreaper.reaper import sending
from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql
from tests.waiting import until

__all__ = ["foreign_client", "sql", "transactional_db"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


@pytest.fixture
def asr_jobs(sql: Sql) -> Rows:
    """The table `asr_jobs`, seen by a foreign client."""
    return Rows(sql, "asr_jobs")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Waits as they are, only shorter, and passes that never hold."""
    monkeypatch.setattr(retry, "FIRST_RETRY_SEC", 0.001)
    monkeypatch.setattr(sending, "LOCK_TIMEOUT_SEC", 0.02)
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}


@pytest.fixture
def curse(sql: Sql) -> Iterator[Any]:
    """Make updates of `jobs` fail."""

    def cast(each: str, code: str = "P0001") -> None:
        sql(f"""
            CREATE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE 'cursed' USING ERRCODE = '{code}'; END $$
        """)
        sql(f"CREATE TRIGGER curse BEFORE UPDATE ON jobs FOR EACH {each} EXECUTE FUNCTION curse()")

    yield cast
    sql("DROP FUNCTION IF EXISTS curse CASCADE")


@pytest.fixture
def calm(settings: Settings, sql: Sql) -> None:
    """A grace that is shorter than the server has been up."""
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 5, "HEARTBEAT_SEC": 15}
    up = "SELECT now() - pg_postmaster_start_time() > interval '6 seconds' AS for_long"
    until(lambda: sql(up)[0]["for_long"])
