"""Job tables to plant rows in, and a page that no earlier test has left in the cache."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobreaper.metrics.prometheus import collector
from tests.committed import transactional_db
from tests.rows import Rows

__all__ = ["transactional_db"]


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    collector.forget()
    yield
    collector.forget()


@pytest.fixture
def jobs(sql: Callable[..., Any]) -> Rows:
    return Rows(sql, "jobs")


@pytest.fixture
def asr_jobs(sql: Callable[..., Any]) -> Rows:
    return Rows(sql, "asr_jobs")


@pytest.fixture
def own_jobs(sql: Callable[..., Any]) -> Rows:
    return Rows(sql, "jobreaper_jobs")
