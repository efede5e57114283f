"""The queue's statements read the jobs they are about, whatever else waits or is scheduled."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.forms import modelform_factory
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from jobreaper import conf, pause
from jobreaper.admin.own_jobs import JobForm
from jobreaper.models import Job
from jobreaper.queue.dedupe import make_dedupe_key
from jobreaper.queue.enqueueing import _statement
from jobreaper.queue.new_jobs import new_jobs, params_of
from jobreaper.states import Dedupe
from jobreaper.tables import JobTable, table_of
from jobreaper.tables.statements import kinds
from tests.plans.conftest import Plan

pytestmark = pytest.mark.django_db

TABLE = "jobreaper_jobs"
DUE = "idx_jobreaper_jobs_queued_due"
BY_PRIORITY = "idx_jobreaper_jobs_queued_priority"
RUNNING = "idx_jobreaper_jobs_status_lease"
KEY = "jobreaper_jobs_pkey"
BY_KIND = "idx_jobreaper_jobs_queued_kind"
DEDUPE = "uniq_jobreaper_jobs_dedupe"
QUEUE = {DUE, BY_PRIORITY, KEY}

Explain = Callable[..., Plan]

FINISHED = """
INSERT INTO jobreaper_jobs (id, type, stage, status, attempt_count, lease_epoch, finished_at,
                            dedupe_key)
SELECT gen_random_uuid(), 'mail', 'mail', 'success', 1, 1, now(), 'mail::global::' || n
  FROM generate_series(1, 100000) AS n
"""
# Every tenth has another type; one in a hundred is urgent, one in a hundred can wait.
QUEUED = """
INSERT INTO jobreaper_jobs (id, type, stage, next_earliest_run_at, dedupe_key, priority)
SELECT gen_random_uuid(), kind, kind, now() + %(from)s * interval '1 hour' + n * interval '1 ms',
       'mail::global::' || n, CASE n %% 100 WHEN 1 THEN 5 WHEN 2 THEN -5 ELSE 0 END
  FROM (SELECT n, CASE WHEN n %% 10 = 0 THEN 'fax' ELSE 'mail' END AS kind
          FROM generate_series(%(first)s, %(last)s) AS n) AS numbered
"""


@pytest.fixture(scope="module")
def tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Finished jobs, 50,000 that are due and 50,000 for later, as the planner knows them."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(FINISHED)
        cursor.execute(QUEUED, {"from": -1, "first": 1, "last": 50_000})
        cursor.execute(QUEUED, {"from": 24, "first": 50_001, "last": 100_000})
        cursor.execute("VACUUM (ANALYZE) jobreaper_jobs")
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobreaper_jobs")
        cursor.execute("VACUUM (ANALYZE) jobreaper_jobs")


@pytest.fixture
def only_scheduled(tables: None, db: None) -> None:
    """As it is when the last due job was taken: those that remain are for later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobreaper_jobs SET status = 'success', finished_at = now()"
            " WHERE status = 'queued' AND next_earliest_run_at < now() AND type = 'mail'"
        )
        cursor.execute(
            "UPDATE jobreaper_jobs SET priority = -9"
            " WHERE status = 'queued' AND next_earliest_run_at < now()"
        )


def claim(**wanted: Any) -> dict[str, Any]:
    return {
        "id": None,
        "n": 1,
        "types": None,
        "stages": None,
        "queues": None,
        "worker": "w",
        "policies": conf.settings().policies_json,
        "mark_us": 1,
        **wanted,
    }


def reads(plan: Plan, rows: int, indexes: set[str]) -> None:
    assert "Seq Scan" not in plan.scans, plan
    assert plan.indexes <= indexes, plan
    assert plan.rows_read <= rows, plan
    assert plan.rows_sorted <= rows, plan


@pytest.mark.parametrize("n", [1, 100, 1000])
def test_a_claim_reads_the_jobs_it_takes(n: int, tables: None, explain: Explain) -> None:
    plan = explain(table_of(Job).statement("claim"), claim(n=n, types=["mail", "fax"]), TABLE)
    # Each is found, then updated; of each priority one row is looked at.
    reads(plan, 3 * n + 10, QUEUE)
    assert plan.rows_changed == n


def test_a_claim_of_another_priority_passes_over_none_that_is_scheduled(
    only_scheduled: None, explain: Explain
) -> None:
    plan = explain(table_of(Job).statement("claim"), claim(n=10), TABLE)
    assert plan.rows_changed == 10
    reads(plan, 3 * 10 + 10, QUEUE)


def test_a_claim_of_jobs_without_a_priority_passes_over_none_that_is_scheduled(
    only_scheduled: None, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job._meta.get_field("priority"), "null", True)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobreaper_jobs ALTER priority DROP NOT NULL")
        cursor.execute("UPDATE jobreaper_jobs SET priority = NULL WHERE status = 'queued'")
    plan = explain(JobTable(model=Job).statement("claim"), claim(n=10), TABLE)
    assert plan.rows_changed == 10
    reads(plan, 3 * 10 + 10, QUEUE)


# What the load has of kinds, each in two ranges of the index, and one more look that finds none.
PROBES = 2 * 4 + 1


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("wanted", [{"types": ["fax"]}, {"stages": ["fax"]}], ids=["type", "stage"])
def test_a_claim_by_kind_reads_no_job_of_another_kind(
    wanted: dict[str, Any], n: int, tables: None, explain: Explain
) -> None:
    plan = explain(table_of(Job).statement("claim_by_kind"), claim(n=n, **wanted), TABLE)
    assert plan.rows_changed == n
    # Some more than are needed, because other claims may lock them.
    reads(plan, PROBES + 2 * (2 * n + kinds.SPARE) + n, {BY_KIND, KEY})


def test_a_claim_by_kind_reads_no_paused_job(tables: None, explain: Explain) -> None:
    pause("mail")
    plan = explain(table_of(Job).statement("claim_by_kind"), claim(n=100), TABLE)
    assert plan.rows_changed == 100
    reads(plan, PROBES + 2 * (2 * 100 + kinds.SPARE) + 100, {BY_KIND, KEY})


@override_settings(JOBREAPER={"STAGES": {"mail": {"max_running": 1}}})
def test_a_claim_by_kind_reads_no_job_of_a_full_stage(tables: None, explain: Explain) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobreaper_jobs (id, type, stage, status, lease_expires_at) VALUES"
            " (gen_random_uuid(), 'mail', 'mail', 'processing', now() + interval '1 hour')"
        )
    limits = {"limits": conf.settings().limits_json}
    statement = table_of(Job).limited_statement("claim_by_kind")
    plan = explain(statement, claim(n=100, **limits), TABLE)
    assert plan.rows_changed == 100
    reads(plan, PROBES + 2 * (2 * 100 + kinds.SPARE) + 2 * 100 + 10, {BY_KIND, KEY, RUNNING})


def test_a_claim_does_not_look_along_a_long_line_for_long(
    tables: None, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "LOOK_MS", -1)
    statement = JobTable(model=Job).statement("claim")
    plan = explain(statement, claim(n=10, types=["telex"]), TABLE)
    assert plan.rows_changed == 0
    reads(plan, 3 * 10 + 10, QUEUE)


@override_settings(JOBREAPER={"STAGES": {"fax": {"max_running": 5}}})
def test_a_claim_within_limits_counts_running_jobs_and_reads_those_it_takes(
    tables: None, explain: Explain
) -> None:
    limits = {"limits": conf.settings().limits_json}
    plan = explain(table_of(Job).limited_statement("claim"), claim(n=100, **limits), TABLE)
    assert 80 <= plan.rows_changed <= 100
    reads(plan, 4 * 100 + 20, QUEUE | {RUNNING})


def dispatch(**wanted: Any) -> dict[str, Any]:
    settings = conf.settings()
    given = {"id": None, "n": 1, "stages": None, "queues": None, "limits": settings.limits_json}
    return {**given, "again_sec": settings.dispatch_again_sec, **wanted}


@override_settings(JOBREAPER={"STAGES": {"render": {"max_running": 5}}})
def test_a_dispatch_of_one_job_of_a_stage_without_a_limit_reads_that_job(
    tables: None, explain: Explain
) -> None:
    job = Job.objects.filter(type="mail").due().first()
    assert job is not None
    plan = explain(table_of(Job).limited_statement("dispatch"), dispatch(id=job.pk), TABLE)
    assert plan.rows_changed == 1
    reads(plan, 5, QUEUE | {RUNNING})


@pytest.mark.parametrize("running", [4, 5])
@override_settings(JOBREAPER={"STAGES": {"render": {"max_running": 5}}})
def test_a_dispatch_of_one_job_of_a_limited_stage_reads_what_runs_and_what_is_due(
    running: int, only_scheduled: None, explain: Explain
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobreaper_jobs (id, type, stage, status, lease_expires_at)"
            " SELECT gen_random_uuid(), 'render', 'render', 'processing', now() + interval '1 hour'"
            f" FROM generate_series(1, {running})"
        )
    job = Job.objects.create(type="render", stage="render")
    due = Job.objects.due().count()
    plan = explain(table_of(Job).limited_statement("dispatch"), dispatch(id=job.pk), TABLE)
    assert plan.rows_changed == 5 - running
    # A stage that is full by what runs is not looked at further.
    reads(plan, running + 10 + (due if running < 5 else 0), QUEUE | {RUNNING})


@pytest.mark.parametrize(("statement", "n"), [("finish_many", 500), ("fail_many", 100)])
def test_ending_a_group_reads_that_group(
    statement: str, n: int, tables: None, explain: Explain
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobreaper_jobs SET status = 'processing', locked_by = 'w', lease_epoch = 1,"
            " claimed_at = now(), lease_expires_at = now() + interval '5 minutes'"
            " WHERE id IN (SELECT id FROM jobreaper_jobs WHERE status = 'queued' LIMIT %s)"
            " RETURNING id",
            [n],
        )
        ids = [pk for (pk,) in cursor.fetchall()]
    params: dict[str, Any] = {
        "worker": "w",
        "ids": ids,
        "epochs": [1] * n,
        "waited_ms": [1.0] * n,
        "ran_ms": [1.0] * n,
        "fail_codes": ["E"] * n,
        "fail_reasons": [None] * n,
        "exceptions": [None] * n,
        "tracebacks": [None] * n,
        "results": "{}",
        "reports": "{}",
        "retry": True,
        "delay_sec": None,
        "policies": conf.settings().policies_json,
    }
    plan = explain(table_of(Job).statement(statement), {**params, "details": True}, TABLE)
    # Each has an event. A statement that returns the jobs it changed counts them too.
    assert plan.rows_changed in (n, 2 * n)
    reads(plan, 3 * n, {KEY, RUNNING})


@pytest.mark.parametrize("dedupe", Dedupe)
def test_an_enqueue_finds_its_key_in_the_index(
    dedupe: Dedupe, tables: None, explain: Explain
) -> None:
    made = new_jobs(
        [{"type": "mail", "payload": {"n": 1}, "dedupe": "skip", "dedupe_key": "mail::global::777"}]
    )
    plan = explain(_statement("enqueue", dedupe), params_of(made), TABLE)
    assert DEDUPE in plan.indexes or dedupe == Dedupe.REPLACE
    reads(plan, 4, {DEDUPE, KEY})


def test_an_enqueue_of_a_new_key_reads_nothing(tables: None, explain: Explain) -> None:
    made = new_jobs([{"type": "mail", "payload": {"n": 1}, "dedupe": "skip"}])
    assert made.dedupe_keys == [make_dedupe_key("mail", None, {"n": 1})]
    plan = explain(_statement("enqueue", Dedupe.SKIP), params_of(made), TABLE)
    assert plan.rows_changed == 1
    assert plan.rows_read == 0


@pytest.mark.parametrize("dedupe", Dedupe)
def test_many_enqueues_read_no_more_than_they_replace(
    dedupe: Dedupe, tables: None, explain: Explain
) -> None:
    rows = new_jobs(
        {"type": "mail", "dedupe": "skip", "dedupe_key": f"mail::global::{n}"}
        for n in range(1, 1001)
    )
    plan = explain(_statement("enqueue_many", dedupe), params_of(rows), TABLE)
    assert plan.rows_changed == (1000 if dedupe == Dedupe.REPLACE else 0)
    reads(plan, 1000, {DEDUPE, KEY})


def test_the_admin_finds_a_live_key_in_the_index(tables: None, explain: Explain) -> None:
    form: Any = modelform_factory(Job, JobForm, fields=["dedupe_key"])()
    form.cleaned_data = {"dedupe_key": "mail::global::777"}
    with CaptureQueriesContext(connection) as asked, pytest.raises(ValidationError):
        form.clean_dedupe_key()
    plan = explain(asked[0]["sql"].replace("%", "%%"), (), TABLE)
    reads(plan, 1, {DEDUPE})


def test_the_types_nobody_handles_are_found_without_reading_finished_jobs(
    tables: None, explain: Explain
) -> None:
    statement = table_of(Job).statement("unhandled")
    params = {"types": ["mail", "fax"], "stages": [], "look_at": 20_000, "most": 1000}
    plan = explain(statement, params, TABLE)
    reads(plan, 20_000, {DUE})


def test_the_stages_no_task_handles_are_found_without_reading_finished_jobs(
    tables: None, explain: Explain
) -> None:
    params = {"types": None, "stages": ["mail", "fax"], "look_at": 20_000, "most": 1000}
    plan = explain(table_of(Job).statement("unhandled"), params, TABLE)
    reads(plan, 20_000, {DUE})


def test_rows_are_what_these_tests_say(tables: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT json_object_agg(status, count) FROM"
            " (SELECT status, count(*) FROM jobreaper_jobs GROUP BY 1) AS counted"
        )
        [(counts,)] = cursor.fetchall()
    counts = json.loads(counts) if isinstance(counts, str) else counts
    assert counts == {"success": 100_000, "queued": 100_000}
