"""What every test of the protocol has at hand."""

import pytest
from hypothesis import settings

from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

# The same examples on every run, so that a change is to blame for a failure.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


@pytest.fixture
def asr_jobs(sql: Sql) -> Rows:
    """The table `asr_jobs`, seen by a foreign client."""
    return Rows(sql, "asr_jobs")
