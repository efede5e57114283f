"""Every hot statement reads the rows it is about and not the table, however many have finished."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobreaper import conf
from jobreaper.states import LeaseState
from jobreaper.tables import statements, table_of
from project.media.models import Job
from tests.plans.conftest import Load, Plan

pytestmark = pytest.mark.django_db

RUNNING = "idx_jobs_status_lease"
QUEUED = "idx_jobs_queued_due"
KEY = "jobs_pkey"

Explain = Callable[..., Plan]


def statement(name: str) -> str:
    return table_of(Job).statement(name)


def policies(**stage: Any) -> str:
    return conf.read({"STAGES": {"clip": stage}}, {})[0].policies_json


def some(condition: str, limit: int = 1) -> list[int]:
    """Keys of jobs spread over those that meet a condition."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM jobs WHERE {condition} ORDER BY md5(id::text) LIMIT {limit}"
        )
        return [pk for (pk,) in cursor.fetchall()]


def reads_little(plan: Plan, rows: int, indexes: set[str]) -> None:
    assert "Seq Scan" not in plan.scans, plan
    assert plan.indexes <= indexes, plan
    assert plan.rows_read <= rows, plan
    assert plan.rows_sorted <= rows, plan


def test_a_claim_by_key_reads_one_row(load: Load, explain: Explain) -> None:
    [pk] = some("status = 'queued' AND next_earliest_run_at IS NULL")
    plan = explain(
        statement("claim_one"),
        {
            "id": pk,
            "stages": None,
            "worker": "w",
            "policy_by_stage": conf.settings().policy_by_stage_json,
            "mark_us": 1,
        },
    )
    reads_little(plan, 3, {KEY, QUEUED})


@pytest.mark.parametrize("n", [1, 100])
def test_claiming_the_next_jobs_reads_those_and_none_that_are_scheduled_for_later(
    n: int, load: Load, explain: Explain
) -> None:
    plan = explain(
        statement("claim"),
        {"id": None, "n": n, "stages": None, "worker": "w", "policies": policies(), "mark_us": 1},
    )
    reads_little(plan, 3 * n, {KEY, QUEUED})


def test_claiming_jobs_of_one_stage_reads_no_more_than_the_due_ones(
    load: Load, explain: Explain
) -> None:
    plan = explain(
        statement("claim"),
        {
            "id": None,
            "n": 10,
            "stages": ["burnin"],
            "worker": "w",
            "policies": policies(),
            "mark_us": 1,
        },
    )
    reads_little(plan, 220, {KEY, QUEUED})


def test_taking_over_a_lost_claim_reads_the_leases_that_stand(load: Load, explain: Explain) -> None:
    plan = explain(statement("retake"), {"worker": "worker 1", "since_sec": 1, "mark_us": 1})
    reads_little(plan, 200, {RUNNING})


def test_a_heartbeat_reads_the_leases_it_renews(load: Load, explain: Explain) -> None:
    held = some("status = 'processing' AND lease_expires_at > now()", 100)
    plan = explain(
        statement("heartbeat"),
        {
            "ids": held,
            "epochs": [1] * len(held),
            "workers": ["w"] * len(held),
            "policies": policies(),
        },
    )
    # Each is looked for, maybe among all that run, then renewed and reported on.
    reads_little(plan, 200 + 2 * len(held), {KEY, RUNNING})


@pytest.mark.parametrize("verb", ["finish", "fail", "release"])
def test_the_end_of_a_job_reads_that_job(verb: str, load: Load, explain: Explain) -> None:
    [pk] = some("status = 'processing' AND lease_expires_at > now()")
    plan = explain(
        statement(verb),
        {
            "id": pk,
            "epoch": 1,
            "worker": "w",
            "waited_ms": 0.0,
            "retry": True,
            "delay_sec": None,
            "fail_code": "code",
            "fail_reason": "reason",
            "exception": None,
            "traceback": None,
            "policies": policies(),
        },
    )
    reads_little(plan, 2, {KEY, RUNNING})


@pytest.mark.parametrize("batch", [10, 1000])
def test_a_batch_of_a_pass_reads_what_it_reaps(batch: int, load: Load, explain: Explain) -> None:
    plan = explain(
        table_of(Job).reap_statement,
        {
            "batch": batch,
            "skip": [],
            "silent_by": "infinity",
            "reaper": "r",
            "policies": policies(),
        },
    )
    reaped = min(batch, load.expired)
    reads_little(plan, 3 * reaped, {KEY, RUNNING})


def test_a_pass_that_looks_for_silent_jobs_too_reads_the_running_ones_only(
    load: Load, explain: Explain
) -> None:
    plan = explain(
        table_of(Job).reap_statement,
        {
            "batch": 10,
            "skip": [],
            "silent_by": "infinity",
            "reaper": "r",
            "policies": policies(ttl=60),
        },
    )
    reads_little(plan, 230, {KEY, RUNNING})


def test_a_look_at_who_is_silent_reads_the_running_jobs(load: Load, explain: Explain) -> None:
    plan = explain(
        statements.silence([table_of(Job)]),
        {"grace_sec": 30, "heartbeat_sec": 15, "up_sec": 1e6, "policies": policies()},
    )
    assert RUNNING in plan.indexes
    assert plan.rows_read <= 230 + load.expired


def test_a_dry_run_reads_the_expired_jobs(load: Load, explain: Explain) -> None:
    plan = explain(
        table_of(Job).reap_dry_run_statement,
        {"batch": None, "skip": [], "silent_by": "infinity", "reaper": "r", "policies": policies()},
    )
    reads_little(plan, 2 * load.expired, {KEY, RUNNING})


def test_a_rejected_write_reads_one_row(load: Load, explain: Explain) -> None:
    [pk] = some("status = 'success'")
    plan = explain(
        statement("reject"),
        {
            "id": pk,
            "epoch": 1,
            "verb": "finish",
            "worker": "w",
            "stage": "clip",
            "attempt": 1,
            "tried_before": False,
            "ended_by": ["job:finished"],
        },
    )
    reads_little(plan, 1, {KEY})


def test_an_operators_verb_reads_the_jobs_it_is_given(load: Load, explain: Explain) -> None:
    chosen = some("status = 'failed'", 20)
    plan = explain(
        statement("change_by_hand"),
        {
            "ids": chosen,
            "sources": ["failed"],
            "target": "queued",
            "event": "admin:requeued",
            "by": "operator",
            "reason": None,
            "fail_code": None,
        },
    )
    reads_little(plan, 2 * len(chosen), {KEY})


@pytest.mark.parametrize(
    ("scope", "index"),
    [
        (Job.objects.due(), QUEUED),
        (Job.objects.scheduled(), QUEUED),
        (Job.objects.running(), RUNNING),
        (Job.objects.stuck(), RUNNING),
        *((Job.objects.in_lease_state(state), RUNNING) for state in LeaseState),
    ],
)
def test_a_scope_reads_unfinished_jobs_only(
    scope: Any, index: str, load: Load, explain: Explain
) -> None:
    statement, params = scope.query.sql_with_params()
    plan = explain(statement, params)
    reads_little(plan, 400 + load.expired + load.scheduled, {index})
