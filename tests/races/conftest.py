"""What every race has at hand."""

from collections.abc import Iterator

import pytest

from tests.committed import foreign_client, sql, transactional_db
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


@pytest.fixture
def rivals(sql: Sql) -> Iterator[Rivals]:
    """Calls that run in threads and connections of their own."""
    with Rivals(sql) as rivals:
        yield rivals
