"""The monitoring views of a table with leases."""

from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import conf
from jobreaper.schema import functions
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, ago, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({}, "healthy"),
        ({"last_heartbeat_at": ago(50)}, "late"),
        ({"last_heartbeat_at": ago(341), "lease_expires_at": ago(41)}, "stale"),
        # A row that somebody wrote by hand.
        ({"last_heartbeat_at": None, "claimed_at": None}, "unknown"),
        (
            {"last_heartbeat_at": None, "claimed_at": None, "lease_expires_at": ago(1)},
            "stale",
        ),
        ({"lease_expires_at": None}, "no limit"),
        # Times as a person at psql may write them; one such row hides no other.
        ({"last_heartbeat_at": "-infinity", "claimed_at": None}, "late"),
        ({"lease_expires_at": "-infinity"}, "stale"),
        ({"lease_expires_at": "infinity"}, "healthy"),
        # A fresh claim beside a heartbeat that was kept from an earlier attempt.
        ({"claimed_at": ago(1), "last_heartbeat_at": ago(9999)}, "healthy"),
    ],
)
def test_the_monitor_says_how_each_lease_stands(
    jobs: Rows, columns: dict[str, Any], state: str
) -> None:
    key = jobs.plant_running(stage="clip", **columns)
    jobs.plant(status="success", last_heartbeat_at=ago(9999))
    names = "job_id, stage, status, state"
    [shown] = jobs.sql(f"SELECT {names} FROM jobs_stale_monitor")
    assert (shown["job_id"], shown["state"]) == (str(key), state)
    assert (shown["stage"], shown["status"]) == ("clip", "processing")


@pytest.mark.usefixtures("as_before")
def test_a_job_without_a_lease_is_shown_by_its_stages_ttl(jobs: Rows) -> None:
    with override_settings(JOBREAPER={"STAGES": {"asr": {"ttl": "10m"}}}):
        for made in functions.of_table(table_of(Job), connection):
            made.create(connection)
        for seen in (30, 700):
            jobs.plant_running(
                stage="asr", lease_expires_at=None, last_heartbeat_at=ago(seen), claimed_at=None
            )
        shown = jobs.sql("SELECT state, limit_sec FROM jobs_stale_monitor ORDER BY job_id::bigint")
        assert [row["state"] for row in shown] == ["healthy", "stale"]
        assert {row["limit_sec"] for row in shown} == {600}
    conf.reset()


def test_beyond_twice_the_limit_is_what_no_reaper_has_seen(jobs: Rows) -> None:
    jobs.plant_expired(claimed_at=ago(700))
    jobs.plant_running()
    assert jobs.sql("TABLE jobs_stale_validation") == []
    lost = jobs.plant_running(
        claimed_at=ago(1000), last_heartbeat_at=ago(700), lease_expires_at=ago(400)
    )
    [shown] = jobs.sql("TABLE jobs_stale_validation")
    assert shown["job_id"] == str(lost)
    jobs.sql("SELECT jobs_reap()")
    assert jobs.sql("TABLE jobs_stale_validation") == []


def test_history_says_what_was_taken_from_whom_newest_first(jobs: Rows) -> None:
    first = jobs.plant_expired(stage="clip", locked_by="w1", next_earliest_run_at=None)
    jobs.sql("SELECT jobs_reap()")
    second = jobs.plant_expired(attempt_count=3, locked_by="w2")
    jobs.sql("SELECT jobs_reap()")
    [held] = jobs.sql("SELECT * FROM jobs_claim('w3', job_id => %s)", jobs.plant())
    jobs.sql("SELECT jobs_finish(%s, 'w3')", held["id"])
    newer, older = jobs.sql("TABLE jobs_reclaim_history")
    assert (newer["job_id"], newer["type"]) == (str(second), "reaper:failed(timeout)")
    assert (older["job_id"], older["type"]) == (str(first), "reaper:requeued")
    assert (older["locked_by"], older["reason"]) == ("w1", "lease_expired")
    assert (older["stage"], older["attempt"]) == ("clip", 1)
    assert older["overdue_ms"] >= 41_000
    assert older["reaper"].startswith("sql:")


def test_a_role_that_may_only_read_the_view_can(jobs: Rows, role: str) -> None:
    jobs.plant_running(lease_expires_at=ahead(60))
    jobs.sql(f"GRANT SELECT ON jobs_stale_monitor TO {role}; SET ROLE {role}")
    try:
        assert len(jobs.sql("TABLE jobs_stale_monitor")) == 1
    finally:
        jobs.sql("RESET ROLE")
