"""What a person looks at reads a bounded part of the tables, however large they are."""

from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from jobreaper import sql
from jobreaper.admin.window import LOOKED_AT, Window
from jobreaper.models import JobEvent
from jobreaper.overview.series import MOST_EVENTS, Span
from jobreaper.states import Status
from jobreaper.tables import statements, table_of
from project.media.models import Job
from tests.plans.conftest import Load
from tests.plans.test_plans import KEY, QUEUED, RUNNING, Explain, reads_little, some

pytestmark = pytest.mark.django_db

EVENTS = """
INSERT INTO job_events (job_id, data, at)
SELECT n, jsonb_build_object('type', 'job:finished', 'table', 'jobs',
                             'details', jsonb_build_object('queue_wait_ms', n % 1000)),
       now() - n * interval '1 second'
  FROM generate_series(1, 200000) AS n
"""


@pytest.fixture(scope="module")
def events(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """More than two days of events, one a second."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(EVENTS)
        cursor.execute("VACUUM (ANALYZE) job_events")
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE job_events")
        cursor.execute("VACUUM (ANALYZE) job_events")


def test_the_facts_of_some_jobs_are_read_by_their_keys(load: Load, explain: Explain) -> None:
    keys = some("true", limit=20)
    reads_little(explain(table_of(Job).facts_statement, {"ids": keys}), 20, {KEY})


def test_the_verdicts_on_some_jobs_are_read_by_their_keys(load: Load, explain: Explain) -> None:
    keys = some("status = 'processing'", limit=20)
    statement = statements.dry_run(table_of(Job), among=statements.some_of(table_of(Job)))
    params = {"ids": keys, "batch": 20, "skip": [], "silent_by": "infinity", "policies": "[]"}
    reads_little(explain(statement, params), 40, {KEY, RUNNING})


def test_the_stuck_jobs_are_read_from_the_indexes_of_unfinished_ones(
    load: Load, explain: Explain
) -> None:
    plan = explain(statements.stuck(table_of(Job)), {"most": 20, "overdue_sec": 60})
    assert plan.indexes <= {RUNNING, QUEUED}, plan
    assert plan.rows_read <= 100, plan


def test_the_jobs_that_fill_a_stage_are_running_ones(load: Load, explain: Explain) -> None:
    statement = statements.running_within(table_of(Job), "stage")
    plan = explain(statement, {"name": "clip", "most": 10})
    assert plan.indexes <= {RUNNING}, plan
    assert plan.rows_read <= 210, plan


def test_jobs_of_a_status_are_counted_up_to_a_limit(load: Load, explain: Explain) -> None:
    statement = statements.count_of_status(table_of(Job), Status.SUCCESS)
    assert explain(statement, {"most": 1000}).rows_read <= 1200


@pytest.mark.parametrize("span", Span)
def test_the_charts_read_the_first_events_of_each_step(
    span: Span, events: None, explain: Explain
) -> None:
    params = {**span.params, "most": MOST_EVENTS}
    plan = explain(sql.render("statements/series"), params, "job_events")
    assert plan.indexes == {"idx_job_events_at"}, plan
    assert plan.rows_read <= span.value[0] * MOST_EVENTS, plan


def test_a_list_by_a_rare_type_of_event_reads_the_newest_events(
    events: None, explain: Explain
) -> None:
    window = Window(JobEvent.objects.all(), "pk")
    rows = window.among(JobEvent.objects.filter(type="reaper:failed(poison)"), window.end())
    for found in (rows.order_by("-pk")[:101], rows.order_by().values("pk")[:10_001]):
        statement, params = found.query.sql_with_params()
        plan = explain(statement, params, "job_events")
        assert plan.rows_read <= LOOKED_AT + 1, plan
