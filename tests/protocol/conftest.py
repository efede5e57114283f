"""What every test of the protocol has at hand."""

import pytest

from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


@pytest.fixture
def asr_jobs(sql: Sql) -> Rows:
    """The table `asr_jobs`, seen by a foreign client."""
    return Rows(sql, "asr_jobs")
