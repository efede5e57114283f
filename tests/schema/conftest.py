"""The functions and views of `jobs`, as they were migrated."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections

from tests.committed import transactional_db
from tests.rows import Rows, Sql

__all__ = ["transactional_db"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


@pytest.fixture
def role(sql: Sql) -> Iterator[str]:
    """A role that has been granted nothing, quoted. A cluster's databases share their roles."""
    name = f'"Worker of {connection.settings_dict["NAME"]}"'
    sql(f"CREATE ROLE {name} LOGIN")
    yield name
    sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def reaper(transactional_db: None) -> Iterator[str]:
    """Another alias of the test database, as a reaper has that needs a role of its own."""
    connections["reaper"] = connection.copy("reaper")
    yield "reaper"
    connections["reaper"].close()
    del connections["reaper"]
