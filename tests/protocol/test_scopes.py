"""The queryset's words: due, scheduled, running, stuck, and the state of a lease."""

from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper.states import LeaseState, Status
from project.media.models import Job
from tests.rows import Rows, ago, ahead

# What is planted, which scopes hold it, and in which state its lease is.
ROWS: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "queued": ({}, {"due"}, ""),
    "time has come": ({"next_earliest_run_at": ago(1)}, {"due"}, ""),
    "time is ahead": ({"next_earliest_run_at": ahead(60)}, {"scheduled"}, ""),
    "live": (
        {"status": "processing", "lease_expires_at": ahead(60), "last_heartbeat_at": ago(44)},
        {"running"},
        LeaseState.LIVE,
    ),
    "three beats missed": (
        {"status": "processing", "lease_expires_at": ahead(60), "last_heartbeat_at": ago(46)},
        {"running"},
        LeaseState.LATE,
    ),
    "never beaten": (
        {"status": "processing", "lease_expires_at": ahead(60)},
        {"running"},
        LeaseState.LATE,
    ),
    "expired": (
        {"status": "processing", "lease_expires_at": ago(1), "last_heartbeat_at": ago(1)},
        {"running", "stuck"},
        LeaseState.EXPIRED,
    ),
    "no lease": (
        {"status": "processing", "last_heartbeat_at": ago(1)},
        {"running", "stuck"},
        LeaseState.NONE,
    ),
    "done": ({"status": "success", "lease_expires_at": ago(1)}, set(), ""),
    "cancelled": ({"status": "cancelled", "next_earliest_run_at": ahead(60)}, set(), ""),
}


@pytest.fixture
def planted(jobs: Rows, settings: Settings) -> dict[int, str]:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 15}
    return {jobs.plant(**columns): name for name, (columns, _, _) in ROWS.items()}


@pytest.mark.parametrize("scope", ["due", "scheduled", "running", "stuck"])
def test_a_scope_holds_the_rows_of_its_name(planted: dict[int, str], scope: str) -> None:
    found = {planted[job.pk] for job in getattr(Job.objects, scope)()}
    assert found == {name for name, (_, scopes, _) in ROWS.items() if scope in scopes}


@pytest.mark.parametrize("state", LeaseState)
def test_running_jobs_are_found_by_the_state_of_their_lease(
    planted: dict[int, str], state: LeaseState
) -> None:
    found = {planted[job.pk] for job in Job.objects.in_lease_state(state)}
    assert found == {name for name, (_, _, expected) in ROWS.items() if expected == state}


def test_every_row_can_be_shown_with_the_state_of_its_lease(planted: dict[int, str]) -> None:
    found = {planted[job.pk]: job.lease_state for job in Job.objects.with_lease_state()}
    assert found == {name: expected for name, (_, _, expected) in ROWS.items()}


def test_scopes_can_be_chained(planted: dict[int, str], jobs: Rows) -> None:
    key = jobs.plant(status=Status.PROCESSING.value, stage="asr")
    assert [job.pk for job in Job.objects.filter(stage="asr").stuck()] == [key]


def test_the_databases_clock_decides(jobs: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    key = jobs.plant_running(lease_expires_at=ahead(60), last_heartbeat_at=timedelta())
    monkeypatch.setattr("django.utils.timezone.now", None)
    assert [job.pk for job in Job.objects.in_lease_state(LeaseState.LIVE)] == [key]
    assert not Job.objects.stuck()
