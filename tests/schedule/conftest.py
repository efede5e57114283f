"""What every test of schedules has at hand."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper.queue.handlers import _handlers, _timetables
from tests.committed import foreign_client, sql, transactional_db
from tests.queue.conftest import rivals
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "rivals", "sql", "transactional_db"]


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")


@pytest.fixture(autouse=True)
def own_schedules() -> Iterator[None]:
    """Handlers and schedules that a test declares are gone after it."""
    handlers, timetables = dict(_handlers), dict(_timetables)
    yield
    _handlers.clear()
    _handlers.update(handlers)
    _timetables.clear()
    _timetables.update(timetables)


@pytest.fixture
def scheduled(settings: Settings) -> Callable[..., None]:
    """Declare the schedule `report`, daily at six, with these options."""

    def declare(name: str = "report", **options: Any) -> None:
        settings.JOBREAPER = {"SCHEDULE": {name: {"cron": "0 6 * * *", **options}}}

    return declare
