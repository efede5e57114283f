"""What goes wrong with a table in a pass stays with that table."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pytest_django import Settings

from jobreaper import reap
from project.media.models import Job
from tests.reaper.passes import reap_all
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_table_locked_by_a_migration_stops_no_other(
    jobs: Rows, asr_jobs: Rows, second_connection: psycopg.Connection[Any], sql: Sql
) -> None:
    locked, free = jobs.plant_expired(), asr_jobs.plant_expired()
    second_connection.execute("ALTER TABLE jobs ADD COLUMN new text")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [free]
    assert result.all_errors == ["jobs: canceling statement due to lock timeout"]
    [row] = sql("TABLE jobreaper_passes")
    assert row["error"] == "jobs: canceling statement due to lock timeout"
    second_connection.rollback()
    assert reap_all().requeued_ids["jobs"] == [locked]


@pytest.fixture
def renamed(sql: Sql) -> Iterator[Any]:
    """Take a table or a column away for a while."""
    undo = []

    def rename(what: str, name: str) -> None:
        sql(f"ALTER TABLE {what} {name} TO away")
        column = name.startswith("RENAME COLUMN")
        kept = name.removeprefix("RENAME COLUMN ")
        undo.append(
            f"ALTER TABLE {what} RENAME COLUMN away TO {kept}"
            if column
            else f"ALTER TABLE away RENAME TO {what}"
        )

    yield rename
    for statement in undo:
        sql(statement)


MIGRATE = "run `manage.py migrate` on this database"


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_missing_table_stops_no_other(
    asr_jobs: Rows, jobs: Rows, renamed: Any, planted: int
) -> None:
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    renamed("jobs", "RENAME")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    assert result.all_errors == [f'jobs: relation "jobs" does not exist: {MIGRATE}']


# One that the search for expired rows needs, and one that only the update does.
@pytest.mark.parametrize("column", ["lease_expires_at", "dispatched_at"])
@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_missing_column_stops_no_other_table(
    asr_jobs: Rows, jobs: Rows, renamed: Any, column: str, planted: int
) -> None:
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    renamed("jobs", f"RENAME COLUMN {column}")
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    [error] = result.all_errors
    assert error.startswith("jobs: column ")
    assert error.endswith(MIGRATE)


@pytest.mark.parametrize("what", ["RENAME", "RENAME COLUMN last_error"])
def test_what_is_missing_of_a_table_that_django_does_not_manage_is_not_said_to_be_migrated(
    renamed: Any, what: str, sql: Sql
) -> None:
    sql(
        "INSERT INTO executor_jobs (type, status, locked_by, locked_at, heartbeat_at)"
        " VALUES ('run_tsa', 'processing', 'w', now() - interval '9 h', now() - interval '9 h')"
    )
    renamed("executor_jobs", what)
    [error] = reap(["executor_jobs"]).all_errors
    assert error.startswith("executor_jobs: ")
    assert error.endswith(f"{MIGRATE}, or add by hand what Django does not manage")


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_a_table_that_refuses_every_update_stops_no_other(
    asr_jobs: Rows, jobs: Rows, curse: Any, planted: int
) -> None:
    # As one without the permission to update it would: even a batch of no rows is refused.
    curse(each="STATEMENT")
    for _ in range(planted):
        jobs.plant_expired()
    key = asr_jobs.plant_expired()
    result = reap_all()
    assert result.requeued_ids["asr_jobs"] == [key]
    assert result.all_errors[-1] == "jobs: cursed"


def test_missing_events_stop_the_pass_and_nothing_is_reaped_unrecorded(
    jobs: Rows, renamed: Any
) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    renamed("job_events", "RENAME")
    [error] = reap([Job]).all_errors
    assert error == f'jobs: relation "job_events" does not exist: {MIGRATE}'
    assert jobs.row(key) == before


def test_a_pass_that_cannot_be_recorded_reaps_all_the_same(jobs: Rows, renamed: Any) -> None:
    key = jobs.plant_expired()
    renamed("jobreaper_passes", "RENAME")
    result = reap([Job], hold=False)
    assert result.requeued_ids["jobs"] == [key]
    [error] = result.all_errors
    assert error.startswith("the pass could not be recorded: ")


def test_when_it_cannot_be_told_whether_to_hold_nothing_is_reaped(
    jobs: Rows, renamed: Any, settings: Settings
) -> None:
    # Unknown is not well.
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 1}
    jobs.plant_expired()
    renamed("jobreaper_passes", "RENAME")
    result = reap([Job])
    assert result.requeued == 0
    assert result.all_errors
