"""A pass that finds nothing to do asks everything at once."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from jobreaper import conf, reap
from jobreaper.models import ReaperPass, Total
from jobreaper.reaper import quiet
from jobreaper.tables import job_tables, table_of
from project.documents.models import ExecutorJob
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago, ahead

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("transactional_db")]

STALE = """INSERT INTO executor_jobs (type, status, locked_by, locked_at, heartbeat_at)
    VALUES ('run_tsa', 'processing', 'w', now() - interval '9 h', now() - interval '9 h')"""


def is_quiet(*models: Any) -> bool:
    asked = quiet.ask(connection, [table_of(model) for model in models])
    return asked is not None and asked.is_quiet(holds=False)


@pytest.mark.parametrize("hold", [False, True])
def test_a_quiet_pass_is_two_statements_with_its_record(hold: bool, jobs: Rows) -> None:
    jobs.plant_running()
    # The first one is counted under a name that the second one gives.
    for _ in range(2):
        reap(hold=hold)
    with CaptureQueriesContext(connection) as sent:
        result = reap(hold=hold)
    assert result.all_errors == []
    assert len(result.tables) > 2
    assert len(sent) == 2
    assert ReaperPass.objects.count() == 3


def test_a_pass_with_one_batch_looks_and_reaps_only_where_something_is_due(jobs: Rows) -> None:
    reap()
    key = jobs.plant_expired()
    with CaptureQueriesContext(connection) as sent:
        assert reap().requeued_ids["jobs"] == [key]
    # The question, the verdict, the server's start, the silence, the batch, the record, the totals.
    assert len(sent) == 7


def test_its_tables_count_as_scanned(jobs: Rows) -> None:
    for _ in range(2):
        assert reap([Job, AsrJob]).all_errors == []
    for name in ("scans", "clean_scans"):
        counted = Total.objects.filter(name=name, table="jobs").values_list("count", flat=True)
        assert sum(counted) == 2


def test_it_folds_totals_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "MOST_UNFOLDED", 8)
    rows = []
    for _ in range(9):
        reap([Job])
        rows.append(Total.objects.count())
    assert max(rows) == 10
    assert rows[-1] < max(rows)


@pytest.mark.parametrize("of_lease", ["lease", "ttl"])
def test_a_job_to_reap_ends_the_quiet(of_lease: str, jobs: Rows, settings: Settings) -> None:
    assert is_quiet(AsrJob, Job)
    if of_lease == "lease":
        jobs.plant_expired()
    else:
        long_ago = {"claimed_at": ago(99), "last_heartbeat_at": ago(99)}
        jobs.plant_running(stage="old", lease_expires_at=None, **long_ago)
        assert is_quiet(AsrJob, Job)
        settings.JOBREAPER = {"STAGES": {"old": {"ttl": 60}}}
    assert not is_quiet(AsrJob, Job)
    assert reap([AsrJob, Job], hold=False).requeued == 1
    assert is_quiet(AsrJob, Job)


def test_so_does_one_of_a_table_without_leases(sql: Sql) -> None:
    assert is_quiet(Job, ExecutorJob)
    sql(STALE)
    assert not is_quiet(Job, ExecutorJob)


def test_a_row_that_could_not_be_written_ends_it(jobs: Rows, sql: Sql) -> None:
    sql(
        """INSERT INTO jobreaper_refused_rows ("table", verb, key, error, tries, next_try_at)
           VALUES ('jobs', 'reap', '1', 'cursed', 1, now() + interval '1 hour')"""
    )
    assert is_quiet(AsrJob)
    assert not is_quiet(AsrJob, Job)


@pytest.fixture
def role(sql: Sql) -> Iterator[str]:
    name = f'"Reaper of {connection.settings_dict["NAME"]}"'
    sql(f"CREATE ROLE {name}")
    yield name
    sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_rows_that_may_be_hidden_end_it(role: str, sql: Sql) -> None:
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    sql("ALTER TABLE jobs ENABLE ROW LEVEL SECURITY")
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
    try:
        assert is_quiet(AsrJob)
        assert not is_quiet(AsrJob, Job)
    finally:
        connection.close()
        sql("ALTER TABLE jobs DISABLE ROW LEVEL SECURITY")


def test_a_clock_that_has_jumped_ends_it(jobs: Rows, sql: Sql) -> None:
    jobs.plant_running(lease_expires_at=ahead(300))
    reap([Job])
    sql("UPDATE jobreaper_passes SET started_at = started_at - interval '1 day'")
    grace = conf.settings().recovery_grace_sec
    assert grace > 0
    asked = quiet.ask(connection, [table_of(Job)])
    assert asked is not None
    assert not asked.is_quiet(holds=True)
    assert asked.is_quiet(holds=False)


@pytest.mark.parametrize("column", ["reap_count", "dispatched_at"])
def test_a_column_that_is_missing_ends_it(column: str, sql: Sql) -> None:
    assert quiet.ask(connection, [table_of(Job)]) is not None
    sql(f"ALTER TABLE jobs RENAME COLUMN {column} TO away")
    try:
        assert quiet.ask(connection, [table_of(Job)]) is None
    finally:
        sql(f"ALTER TABLE jobs RENAME COLUMN away TO {column}")


def test_what_cannot_be_asked_at_once_is_asked_one_by_one(jobs: Rows, sql: Sql) -> None:
    key = jobs.plant_expired()
    sql("ALTER TABLE asr_jobs RENAME TO away")
    try:
        assert quiet.ask(connection, job_tables()) is None
        result = reap([AsrJob, Job], hold=False)
    finally:
        sql("ALTER TABLE away RENAME TO asr_jobs")
    assert result.requeued_ids["jobs"] == [key]
    assert len(result.all_errors) == 1
