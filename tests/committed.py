"""A database that keeps what is committed, and is emptied again in milliseconds.

pytest-django's own `transactional_db` truncates every table after each test, which takes a hundred
times as long as these few tests' rows deserve. A package of tests that wants this one imports it in
its conftest.
"""

from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from jobreaper import heartbeat

TABLES = (
    "jobs",
    "asr_jobs",
    "jobreaper_jobs",
    "jobreaper_pauses",
    "job_events",
    "jobreaper_passes",
    "jobreaper_totals",
    "executor_jobs",
)


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            yield
        finally:
            heartbeat.heart.stop()
            # A test may have ended its session.
            connection.close_if_unusable_or_obsolete()
            with connection.cursor() as cursor:
                cursor.execute("; ".join(f"DELETE FROM {table}" for table in TABLES))
