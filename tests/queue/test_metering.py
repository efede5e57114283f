"""Metering: what ran, for whom, how long."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobreaper import claim, enqueue, job_handler
from jobreaper.models import Job, JobEvent
from jobreaper.queue.worker import Worker
from project.media.models import Job as MediaJob
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


def view(sql: Sql) -> list[dict[str, Any]]:
    return sql('SELECT * FROM jobreaper_metering ORDER BY day, "table", org_id, type')


def event(sql: Sql, at: datetime, type: str = "job:finished", **details: Any) -> None:
    from psycopg.types.json import Jsonb

    data = {"type": type, "table": "jobreaper_jobs", "details": details}
    sql("INSERT INTO job_events (job_id, data, at) VALUES ('1', %s, %s)", Jsonb(data), at)


def test_runs_failures_and_seconds_are_summed_by_org_type_and_day(jobs: Rows, sql: Sql) -> None:
    @job_handler("mail")
    def send(job: Any, lease: Any) -> None:
        if job.payload.get("fails"):
            raise ValueError

    for org, fails in (("acme", False), ("acme", True), ("acme", False), (None, False)):
        enqueue("mail", {"fails": fails}, org_id=org, max_attempts=1)
    Worker().run(once=True)
    today = jobs.now().astimezone(UTC).date()
    rows = view(sql)
    assert [(row["day"], row["org_id"], row["type"]) for row in rows] == [
        (today, "acme", "mail"),
        (today, None, "mail"),
    ]
    assert [(row["runs"], row["failures"]) for row in rows] == [(3, 1), (1, 0)]
    assert all(0 <= row["seconds"] < 60 for row in rows)


def test_a_retry_is_a_run_that_failed_and_the_next_one_another(jobs: Rows, sql: Sql) -> None:
    job = enqueue("mail", org_id="acme")
    for end in ("fail", "finish"):
        jobs.set(job.pk, next_earliest_run_at=ago(1))
        lease = claim(Job, job.pk)
        assert lease is not None
        jobs.set(job.pk, claimed_at=ago(10))
        lease.fail("E") if end == "fail" else lease.finish()
    [row] = view(sql)
    assert (row["runs"], row["failures"]) == (2, 1)
    assert 20 <= row["seconds"] < 50


def test_a_run_given_back_is_none(sql: Sql) -> None:
    job = enqueue("mail")
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.release()
    assert view(sql) == []


def test_tables_without_types_are_summed_by_stage(sql: Sql) -> None:
    job = MediaJob.objects.create(stage="clip")
    lease = claim(MediaJob, job.pk)
    assert lease is not None
    lease.finish()
    [row] = view(sql)
    assert (row["table"], row["org_id"], row["type"], row["runs"]) == ("jobs", None, "clip", 1)


def test_days_are_those_of_utc(sql: Sql) -> None:
    event(sql, datetime(2030, 1, 1, 23, 59, 59, tzinfo=UTC), duration_ms=1000)
    event(sql, datetime(2030, 1, 2, 0, 0, tzinfo=UTC), duration_ms=500)
    sql("SET TIME ZONE 'Asia/Tokyo'")
    try:
        rows = view(sql)
    finally:
        sql("RESET TIME ZONE")
    assert [(row["day"], row["seconds"]) for row in rows] == [
        (date(2030, 1, 1), 1.0),
        (date(2030, 1, 2), 0.5),
    ]


@pytest.mark.parametrize("duration", ["long", None, {}, [1]])
def test_a_duration_that_a_foreign_writer_made_up_does_no_harm(duration: Any, sql: Sql) -> None:
    event(sql, datetime(2030, 1, 1, tzinfo=UTC), duration_ms=duration)
    event(sql, datetime(2030, 1, 1, tzinfo=UTC))
    [row] = view(sql)
    assert (row["runs"], row["seconds"]) == (2, 0)
    assert [found["seconds"] for found in JobEvent.objects.metering()] == [0]


MOMENTS = st.integers(0, 5 * 86_400).map(
    lambda seconds: datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)
TYPES = st.sampled_from(["job:finished", "job:failed", "job:retried", "job:released"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(MOMENTS, TYPES, st.sampled_from(["a", "b", None]), st.integers(0, 10**6)),
        max_size=15,
    ),
    MOMENTS,
    MOMENTS,
)
def test_the_queryset_and_the_view_agree(
    sql: Sql, runs: list[tuple[datetime, str, str | None, int]], since: datetime, until: datetime
) -> None:
    sql("DELETE FROM job_events")
    for at, type, org, duration_ms in runs:
        event(sql, at, type, org_id=org, type_="x", duration_ms=duration_ms)
    assert as_rows(JobEvent.objects.metering()) == as_rows(view(sql))
    between = JobEvent.objects.metering(since, until)
    outside = sql("DELETE FROM job_events WHERE at < %s OR at >= %s RETURNING id", since, until)
    assert as_rows(between.all()) == as_rows(view(sql))
    assert len(outside) <= len(runs)


def as_rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            str(row["day"]),
            row["table"],
            str(row["org_id"]),
            str(row.get("job_type", row.get("type"))),
            row["runs"],
            row["failures"],
            round(row["seconds"], 6),
        )
        for row in found
    )
