"""What a pass records besides its work. Where that fails, the work stands, and it is said once."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from jobreaper import reap
from jobreaper.values import LONGEST_NAME
from project.media.models import Job
from tests.metrics.page import scrape
from tests.rows import Rows, Sql

BY = pytest.mark.parametrize("by", ["Python", "function"])


@pytest.fixture(autouse=True)
def unheld(settings: Settings) -> None:
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}


def reap_jobs(jobs: Rows, by: str) -> tuple[list[str], list[str]]:
    """The keys that were requeued, and the errors of the pass."""
    if by == "function":
        return sorted(row["job_id"] for row in jobs.sql("SELECT * FROM jobs_reap()")), []
    result = reap([Job])
    return sorted(str(key) for key in result.requeued_ids["jobs"]), result.all_errors


@BY
def test_a_stage_of_any_length_is_reaped_counted_and_folded(jobs: Rows, sql: Sql, by: str) -> None:
    # Random, since a text that can be compressed fits an index all the same.
    [row] = sql(
        "SELECT string_agg(gen_random_uuid()::text, '') AS stage FROM generate_series(1, 140)"
    )
    for stage in (row["stage"], "ü" * 5000):
        keys = sorted(str(jobs.plant_expired(stage=stage)) for _ in range(2))
        assert reap_jobs(jobs, by) == (keys, [])
        assert reap_jobs(jobs, by) == ([], [])
        counted = scrape().by("stage", of="reaper_requeues_total")
        assert counted[stage[:LONGEST_NAME]] == 2
    [rows] = sql("SELECT count(*) AS n FROM jobreaper_totals WHERE name = 'requeues'")
    assert rows["n"] == 2


@BY
def test_a_counter_at_its_end_stays_there(jobs: Rows, sql: Sql, by: str) -> None:
    for name in ("requeues", "scans"):
        sql(
            'INSERT INTO jobreaper_totals (name, "table", count, microseconds)'
            " VALUES (%s, 'jobs', 9223372036854775807, 9223372036854775807)",
            name,
        )
    key = str(jobs.plant_expired())
    assert reap_jobs(jobs, by) == ([key], [])
    assert scrape().value("reaper_requeues_total", table="jobs", stage="") == 2.0**63


@pytest.fixture
def unfoldable(sql: Sql) -> Iterator[None]:
    """Nobody can give stages their names."""
    sql("ALTER TABLE jobreaper_stages ADD CONSTRAINT never CHECK (stage = 'x') NOT VALID")
    yield
    sql("ALTER TABLE jobreaper_stages DROP CONSTRAINT never")


@BY
def test_totals_that_cannot_be_folded_undo_nothing(
    jobs: Rows, sql: Sql, unfoldable: None, by: str
) -> None:
    key = str(jobs.plant_expired(stage="new"))
    reaped, errors = reap_jobs(jobs, by)
    assert reaped == [key]
    assert [row["requeued"] for row in sql("TABLE jobreaper_passes")] == [1]
    if by == "Python":
        [error] = errors
        assert error.startswith("the totals could not be folded: new row for relation")


@BY
def test_a_pass_that_cannot_be_recorded_undoes_nothing(jobs: Rows, sql: Sql, by: str) -> None:
    key = str(jobs.plant_expired())
    sql("ALTER TABLE jobreaper_passes ADD CONSTRAINT never CHECK (requeued < 0) NOT VALID")
    try:
        reaped, errors = reap_jobs(jobs, by)
    finally:
        sql("ALTER TABLE jobreaper_passes DROP CONSTRAINT never")
    assert reaped == [key]
    assert jobs.event_types(int(key)) == ["reaper:requeued"]
    if by == "Python":
        [error] = errors
        assert error.startswith("the pass could not be recorded: new row for relation")


@BY
def test_an_epoch_at_its_end_stops_no_other_job(jobs: Rows, by: str) -> None:
    bad, good = jobs.plant_expired(lease_epoch=2**63 - 1), jobs.plant_expired()
    reaped, errors = reap_jobs(jobs, by)
    assert reaped == [str(good)]
    if by == "Python":
        assert errors == [f"jobs: job {bad}: numeric_value_out_of_range (SQLSTATE 22003)"]
    assert reap_jobs(jobs, by) == ([], [])
