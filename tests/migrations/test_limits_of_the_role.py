"""Our migrations for a role on which a DBA has set something: they work, or fail and can be repeated."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from jobreaper import claim_next, enqueue
from jobreaper.models import Job as QueueJob
from project.media.models import Job
from tests.limits import SETTINGS, Limit, limit
from tests.migrations.conftest import Migrate, Sql

__all__ = ["limit"]

pytestmark = pytest.mark.slow


def test_all_migrations_run_there_and_back_under_what_changes_the_meaning_of_statements(
    migrate: Migrate, limit: Limit, sql: Sql
) -> None:
    known = {row["name"] for row in sql("SELECT name FROM pg_settings")}
    for name, value in SETTINGS:
        # Time limits have tests of their own, at the operations that take long.
        if name in known and not name.endswith("timeout"):
            limit(name, value)
    migrate()
    migrate("media", "zero")
    migrate()
    Job.objects.create()
    enqueue("mail")
    assert len(claim_next(Job)) == len(claim_next(QueueJob)) == 1


def install(migrate: Migrate) -> None:
    call_command("reaper_sql", "--install", verbosity=0)


def uninstall(migrate: Migrate) -> None:
    migrate("media", "0002")


def create(migrate: Migrate) -> None:
    migrate("jobreaper")


@pytest.mark.parametrize(
    ("run", "in_use", "name"),
    [
        (create, "job_events", "statement_timeout"),
        (install, "jobs_stale_monitor", "statement_timeout"),
        (uninstall, "jobs_stale_monitor", "lock_timeout"),
    ],
)
def test_what_a_limit_ends_is_told_and_can_be_repeated(
    run: Callable[[Migrate], None],
    in_use: str,
    name: str,
    migrate: Migrate,
    limit: Limit,
    sql: Sql,
    second_connection: psycopg.Connection[Any],
) -> None:
    if in_use == "job_events":
        sql("CREATE TABLE job_events (job_id uuid NOT NULL, data jsonb NOT NULL)")
    else:
        migrate()
    second_connection.execute(f"TABLE {in_use}".encode())
    limit(name, "500ms")
    with pytest.raises((OperationalError, CommandError), match=name.replace("_", " ")):
        run(migrate)
    second_connection.rollback()
    limit(name, "0")
    run(migrate)
    migrate()
    Job.objects.create()
    assert len(claim_next(Job)) == 1
