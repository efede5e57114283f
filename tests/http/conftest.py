"""What every test of the endpoints has at hand."""

from collections.abc import Iterator

import pytest
from django.contrib.auth import get_user_model
from django.test import Client, override_settings

from jobreaper.queue.handlers import _handlers
from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Rows, Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

TOKEN = "s3cret-and-long"


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Handlers that a test declares are gone after it; retries wait."""
    before = dict(_handlers)
    with override_settings(JOBREAPER={"TICK_TOKEN": TOKEN}):
        yield
    _handlers.clear()
    _handlers.update(before)


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The ready-made table, seen by a foreign client."""
    return Rows(sql, "jobreaper_jobs")


@pytest.fixture
def cron(transactional_db: None) -> Client:
    """A client with the token."""
    return Client(headers={"authorization": f"Bearer {TOKEN}"}, raise_request_exception=False)


@pytest.fixture
def staff(transactional_db: None) -> Iterator[Client]:
    """A member of staff in a browser, which checks CSRF as browsers are checked."""
    user = get_user_model().objects.create_user("ann", is_staff=True)
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(user)
    yield client
    user.delete()
