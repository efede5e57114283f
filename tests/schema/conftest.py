"""The functions and views of `jobs`, as they were migrated."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections
from django.test import override_settings

from jobreaper.schema import functions
from jobreaper.tables import table_of
from project.media.models import Job
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
def as_before(transactional_db: None) -> Iterator[None]:
    """Whatever the test installs, what was there before is back afterwards."""
    yield
    # The test's own settings may still be in force.
    with override_settings(JOBREAPER={}):
        own = functions.of_package(connection)
        for made in [*own, *functions.of_table(table_of(Job), connection)]:
            made.create(connection)


@pytest.fixture
def reaper(transactional_db: None) -> Iterator[str]:
    """Another alias of the test database, as a reaper has that needs a role of its own."""
    connections["reaper"] = connection.copy("reaper")
    yield "reaper"
    connections["reaper"].close()
    del connections["reaper"]
