"""What every test of retention has at hand."""

import pytest

from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

DAY = 86_400


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")
