"""Queued jobs that are due later run now, with the attempts that they have left."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from jobreaper import claim, claim_next, run_now
from jobreaper.states import Status
from project.media.models import Job
from tests.rows import Rows, Sql, ago, ahead


@pytest.fixture
def jobs(sql: Sql) -> Rows:
    """The table `jobs`, seen by a foreign client."""
    return Rows(sql, "jobs")


def test_a_job_that_waits_for_its_next_attempt_is_due_and_keeps_its_count(jobs: Rows) -> None:
    key = jobs.plant(
        next_earliest_run_at=ahead(3600), attempt_count=2, lease_epoch=5, dispatched_at=ago(1)
    )
    assert claim(Job, key) is None
    assert run_now(Job, [key], by="ann", reason="they wait") == [key]
    row = jobs.row(key)
    assert (row["attempt_count"], row["lease_epoch"], row["dispatched_at"]) == (2, 5, None)
    [event] = jobs.events(key)
    assert event["type"] == "admin:run_now"
    assert event["details"].items() >= {"by": "ann", "reason": "they wait", "attempt": 2}.items()
    [lease] = claim_next(Job)
    assert (lease.pk, lease.epoch) == (key, 6)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"next_earliest_run_at": ago(1)},
        *({"status": s.value, "next_earliest_run_at": ahead(60)} for s in Status if s != "queued"),
    ],
)
def test_any_other_job_is_left_as_it_is(columns: dict[str, Any], jobs: Rows) -> None:
    key = jobs.plant(**columns)
    before = jobs.row(key)
    assert run_now(Job, [key], by="ann") == []
    assert (jobs.row(key), jobs.events(key)) == (before, [])


def test_the_command_says_what_is_due_and_what_is_not(jobs: Rows) -> None:
    later, due = jobs.plant(next_earliest_run_at=ahead(60)), jobs.plant()

    def run(*keys: object, **options: Any) -> str:
        out = StringIO()
        call_command("run_now", *map(str, keys), table="jobs", stdout=out, **options)
        return out.getvalue()

    assert run(later) == f"{later} is due now\n"
    with pytest.raises(CommandError, match="1 left: not queued for later") as refused:
        run(due)
    assert refused.value.returncode == 1
    with pytest.raises(CommandError) as refused:
        run("no number")
    assert refused.value.returncode == 2
