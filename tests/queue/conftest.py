"""What every test of the queue has at hand."""

from collections.abc import Iterator

import pytest
from django.test import override_settings
from hypothesis import settings

from jobreaper.handlers import _handlers
from tests.committed import foreign_client, sql, transactional_db
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

# The same examples on every run, so that a change is to blame for a failure.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")


@pytest.fixture
def rivals(sql: Sql) -> Iterator[Rivals]:
    """Calls that run in threads and connections of their own."""
    with Rivals(sql) as rivals:
        yield rivals


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Handlers that a test declares are gone after it; retries are due at once."""
    before = dict(_handlers)
    with override_settings(
        JOBREAPER={"JOB_RETRY_BACKOFF_MS_BASE": 1, "JOB_RETRY_BACKOFF_MS_MAX": 1}
    ):
        yield
    _handlers.clear()
    _handlers.update(before)
