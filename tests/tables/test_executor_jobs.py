"""`executor_jobs`, somebody else's table: what its owner wants to see, from every way in."""

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

import jobreaper
from jobreaper import reaper
from jobreaper.exceptions import NotLeasable
from jobreaper.models import ReaperPass
from jobreaper.states import Trigger
from project.documents.models import ExecutorJob
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

MINUTE = 60
TTL_MINUTES = {
    "protect_document_v2": 5,
    "document.protected": 5,
    "build_artifact": 15,
    "run_tsa": 30,
    "submit_anchor_polygon": 60,
    "submit_anchor_bitcoin": 60,
}

Outcomes = dict[str, str]
Reclaim = Callable[[], Outcomes]


def from_python(jobs: Rows) -> Outcomes:
    result = jobreaper.reap([ExecutorJob])
    assert result.all_errors == []
    return {
        **{str(key): "requeued" for key in result.requeued_ids["executor_jobs"]},
        **{str(key): "failed" for key in result.failed_ids["executor_jobs"]},
    }


def from_the_command(jobs: Rows) -> Outcomes:
    out = StringIO()
    call_command("reap", "--table", "executor_jobs", "--format", "json", stdout=out)
    done = json.loads(out.getvalue())["tables"]["executor_jobs"]
    return {
        **dict.fromkeys(done["requeued"], "requeued"),
        **dict.fromkeys(done["failed"], "failed"),
    }


def from_sql(jobs: Rows) -> Outcomes:
    rows = jobs.sql("SELECT * FROM reclaim_stale_jobs()")
    return {row["job_id"]: row["outcome"] for row in rows}


@pytest.fixture(params=[from_python, from_the_command, from_sql])
def reclaim(request: pytest.FixtureRequest, executor_jobs: Rows) -> Reclaim:
    return lambda: request.param(executor_jobs)


def running(jobs: Rows, **columns: Any) -> Any:
    """Plant a job that some worker locked a minute ago."""
    return jobs.plant(
        **{
            "type": "run_tsa",
            "status": "running",
            "locked_at": ago(MINUTE),
            "locked_by": "executor-1",
            "attempts": 1,
            **columns,
        }
    )


# The three validation tests of the table's owner.


def test_a_job_beyond_its_ttl_goes_back_to_the_queue(reclaim: Reclaim, executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE), attempts=1)
    assert reclaim() == {str(job): "requeued"}
    row = executor_jobs.row(job)
    assert (row["status"], row["attempts"]) == ("queued", 2)
    assert (row["locked_at"], row["locked_by"]) == (None, None)
    assert row["last_error"] == "RECLAIMED_TTL: Exceeded TTL (30 min)"


def test_no_running_job_beyond_twice_its_ttl_remains(reclaim: Reclaim, executor_jobs: Rows) -> None:
    for type, minutes in TTL_MINUTES.items():
        for status in ("running", "processing"):
            running(executor_jobs, type=type, status=status, locked_at=ago(2.5 * minutes * MINUTE))
    assert len(executor_jobs.sql("TABLE executor_jobs_stale_validation")) == 12
    assert len(reclaim()) == 12
    assert executor_jobs.sql("TABLE executor_jobs_stale_validation") == []
    assert {row["status"] for row in executor_jobs.all().values()} == {"queued"}


def test_a_job_with_no_attempt_left_is_dead(reclaim: Reclaim, executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE), attempts=10)
    assert reclaim() == {str(job): "failed"}
    row = executor_jobs.row(job)
    assert (row["status"], row["attempts"], row["locked_by"]) == ("dead", 10, None)
    assert row["last_error"] == ("RECLAIMED_TTL: Exceeded TTL (30 min) - Max attempts reached")


# Its rules.


@pytest.mark.parametrize(("type", "minutes"), TTL_MINUTES.items())
def test_each_type_has_its_own_time_to_live(
    reclaim: Reclaim, executor_jobs: Rows, type: str, minutes: int
) -> None:
    late = running(executor_jobs, type=type, locked_at=ago(minutes * MINUTE + 1))
    running(executor_jobs, type=type, locked_at=ago(minutes * MINUTE - 30))
    assert reclaim() == {str(late): "requeued"}
    assert executor_jobs.row(late)["last_error"] == (f"RECLAIMED_TTL: Exceeded TTL ({minutes} min)")


@pytest.mark.parametrize(("attempts", "status"), [(0, "queued"), (9, "queued"), (11, "dead")])
def test_attempts_decide(reclaim: Reclaim, executor_jobs: Rows, attempts: int, status: str) -> None:
    job = running(executor_jobs, locked_at=ago(31 * MINUTE), attempts=attempts)
    reclaim()
    row = executor_jobs.row(job)
    assert row["status"] == status
    assert row["attempts"] == attempts + (status == "queued")


@pytest.mark.parametrize("locked_at", ["-infinity", "4000-01-01 BC"])
def test_a_job_locked_before_all_time_is_reclaimed_with_the_others(
    reclaim: Reclaim, executor_jobs: Rows, locked_at: str
) -> None:
    late = [running(executor_jobs, locked_at=at) for at in (locked_at, ago(35 * MINUTE))]
    states = executor_jobs.sql("SELECT state, age_sec > 60 AS old FROM executor_jobs_stale_monitor")
    assert states == [{"state": "stale", "old": True}] * 2
    assert reclaim() == {str(job): "requeued" for job in late}


def test_a_type_without_a_ttl_is_never_reclaimed_and_shown_as_having_no_limit(
    reclaim: Reclaim, executor_jobs: Rows
) -> None:
    job = running(executor_jobs, type="unheard-of", locked_at=ago(9_999_999))
    before = executor_jobs.row(job)
    assert reclaim() == {}
    assert executor_jobs.row(job) == before
    [shown] = executor_jobs.sql("TABLE executor_jobs_stale_monitor")
    assert (shown["job_id"], shown["state"], shown["limit_sec"]) == (str(job), "no limit", None)


def test_a_heartbeat_keeps_a_job_however_long_ago_it_was_locked(
    reclaim: Reclaim, executor_jobs: Rows
) -> None:
    running(executor_jobs, locked_at=ago(900 * MINUTE), heartbeat_at=ago(29 * MINUTE))
    assert reclaim() == {}


def test_a_heartbeat_kept_from_an_earlier_attempt_does_not_condemn_a_fresh_lock(
    reclaim: Reclaim, executor_jobs: Rows
) -> None:
    running(executor_jobs, locked_at=ago(MINUTE), heartbeat_at=ago(900 * MINUTE))
    assert reclaim() == {}


def test_a_job_that_was_never_locked_nor_beaten_is_left_alone(
    reclaim: Reclaim, executor_jobs: Rows
) -> None:
    running(executor_jobs, locked_at=None)
    assert reclaim() == {}


def test_the_heartbeat_is_kept_as_evidence_and_the_rest_is_as_it_was(
    reclaim: Reclaim, executor_jobs: Rows
) -> None:
    job = running(
        executor_jobs,
        locked_at=ago(50 * MINUTE),
        heartbeat_at=ago(35 * MINUTE),
        dedupe_key="one",
        payload=json.dumps({"n": 1}),
        updated_at=ago(35 * MINUTE),
    )
    before = executor_jobs.row(job)
    reclaim()
    after = executor_jobs.row(job)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {
        "status", "attempts", "locked_at", "locked_by", "last_error", "updated_at"
    }  # fmt: skip
    assert after["heartbeat_at"] == before["heartbeat_at"]


@pytest.mark.parametrize("status", ["queued", "success", "failed", "dead"])
def test_only_running_jobs_are_reclaimed(
    reclaim: Reclaim, executor_jobs: Rows, status: str
) -> None:
    running(executor_jobs, status=status, locked_at=ago(35 * MINUTE))
    assert reclaim() == {}


def test_a_second_pass_finds_nothing(reclaim: Reclaim, executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE))
    reclaim()
    assert reclaim() == {}
    assert executor_jobs.event_types(job) == ["reaper:requeued"]


def test_what_was_done_is_on_record(reclaim: Reclaim, executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(50 * MINUTE), heartbeat_at=ago(35 * MINUTE))
    reclaim()
    [event] = executor_jobs.events(job)
    details = event["details"]
    assert details["reason"] == "lease_expired"
    assert (details["locked_by"], details["stage"]) == ("executor-1", "run_tsa")
    # The column counts the attempts that were given back: this was the one after the first.
    assert (details["attempt"], details["ttl_sec"]) == (2, 1800)
    [began] = executor_jobs.sql("SELECT now() - %s::timestamptz AS ago", details["claimed_at"])
    assert 50 * MINUTE <= began["ago"].total_seconds() < 51 * MINUTE
    assert 5 * MINUTE * 1000 <= details["overdue_ms"] < 6 * MINUTE * 1000
    [seen] = executor_jobs.sql("TABLE executor_jobs_reclaim_history")
    assert (seen["job_id"], seen["locked_by"]) == (str(job), "executor-1")
    assert seen["note"] == "RECLAIMED_TTL: Exceeded TTL (30 min)"
    done = ReaperPass.objects.get()
    assert done.counts == {"executor_jobs": {"requeued": 1, "failed": 0}}


def test_the_pass_says_who_asked(executor_jobs: Rows) -> None:
    from_python(executor_jobs)
    from_the_command(executor_jobs)
    from_sql(executor_jobs)
    triggers = ReaperPass.objects.order_by("id").values_list("trigger", flat=True)
    assert list(triggers) == [Trigger.PYTHON, Trigger.COMMAND, Trigger.SQL]


def test_every_way_writes_the_same(executor_jobs: Rows) -> None:
    written = []
    for way in (from_python, from_the_command, from_sql):
        keys = [
            running(executor_jobs, locked_at=ago(35 * MINUTE)),
            running(executor_jobs, locked_at=ago(35 * MINUTE), attempts=10, status="processing"),
            running(executor_jobs, type="unheard-of", locked_at=ago(9999 * MINUTE)),
            running(executor_jobs, locked_at=ago(9999 * MINUTE), heartbeat_at=ago(3 * MINUTE)),
        ]
        way(executor_jobs)
        told = []
        for key in keys:
            row = executor_jobs.row(key)
            events = executor_jobs.events(key)
            for event in events:
                del event["at"], event["details"]["reaper"], event["details"]["overdue_ms"]
                del event["details"]["last_heartbeat_at"], event["details"]["claimed_at"]
            columns = ("type", "status", "locked_by", "attempts", "last_error")
            told.append(([row[name] for name in columns], events))
        written.append(told)
        executor_jobs.sql("DELETE FROM executor_jobs")
    assert written[0] == written[1] == written[2]


def test_a_dry_run_tells_the_same_and_changes_nothing(executor_jobs: Rows) -> None:
    requeued = running(executor_jobs, locked_at=ago(35 * MINUTE))
    failed = running(executor_jobs, locked_at=ago(35 * MINUTE), attempts=10)
    before = executor_jobs.all()
    dry = jobreaper.reap([ExecutorJob], dry_run=True)
    assert dry.requeued_ids == {"executor_jobs": [requeued]}
    assert dry.failed_ids == {"executor_jobs": [failed]}
    assert executor_jobs.all() == before
    assert executor_jobs.event_types(requeued) == []
    assert from_python(executor_jobs) == {str(requeued): "requeued", str(failed): "failed"}


def test_more_jobs_than_a_batch_are_all_reclaimed(executor_jobs: Rows) -> None:
    for _ in range(7):
        running(executor_jobs, locked_at=ago(35 * MINUTE))
    assert jobreaper.reap([ExecutorJob], batch_size=3).requeued == 7


def test_the_function_takes_a_batch_at_a_time(executor_jobs: Rows) -> None:
    for _ in range(5):
        running(executor_jobs, locked_at=ago(35 * MINUTE))
    sizes = []
    while reclaimed := executor_jobs.sql("SELECT * FROM reclaim_stale_jobs(2)"):
        sizes.append(len(reclaimed))
    assert sizes == [2, 2, 1]


def test_the_one_that_was_silent_longest_comes_first(executor_jobs: Rows) -> None:
    minutes = {
        running(executor_jobs, locked_at=ago(n * MINUTE)): n for n in (40, 33, 90, 35, 60, 31)
    }
    taken = [executor_jobs.sql("SELECT * FROM reclaim_stale_jobs(1)") for _ in minutes]
    silent = {str(key): n for key, n in minutes.items()}
    assert [silent[row["job_id"]] for [row] in taken] == [90, 60, 40, 35, 33, 31]


def test_a_job_that_another_transaction_has_locked_is_left_to_the_next_pass(
    reclaim: Reclaim, executor_jobs: Rows, second_connection: Any
) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE))
    second_connection.execute("SELECT FROM executor_jobs FOR UPDATE")
    assert reclaim() == {}
    second_connection.rollback()
    assert reclaim() == {str(job): "requeued"}


def test_its_jobs_cannot_be_claimed_and_the_error_says_why(executor_jobs: Rows) -> None:
    job = executor_jobs.plant(type="run_tsa")
    with pytest.raises(NotLeasable, match=r"executor_jobs .* no column for .*lease_epoch.*docs/"):
        jobreaper.claim(ExecutorJob, job)
    with pytest.raises(NotLeasable):
        jobreaper.claim_next(ExecutorJob)
    assert reaper.reap([ExecutorJob]).all_errors == []


# update_job_heartbeat()


def beat(jobs: Rows, key: object, worker: str) -> bool:
    [answer] = jobs.sql("SELECT update_job_heartbeat(%s, %s) AS held", key, worker)
    return bool(answer["held"])


def test_a_heartbeat_of_the_jobs_own_worker_is_taken(executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE))
    assert beat(executor_jobs, job, "executor-1") is True
    assert executor_jobs.row(job)["heartbeat_at"] is not None
    assert from_sql(executor_jobs) == {}


@pytest.mark.parametrize(
    ("worker", "changed"),
    [
        ("executor-2", {}),
        ("executor-1", {"status": "queued"}),
        ("executor-1", {"status": "success"}),
        ("executor-1", {"locked_by": None}),
    ],
)
def test_a_heartbeat_of_anybody_else_is_refused(
    executor_jobs: Rows, worker: str, changed: dict[str, Any]
) -> None:
    job = running(executor_jobs, **changed)
    assert beat(executor_jobs, job, worker) is False
    assert executor_jobs.row(job)["heartbeat_at"] is None


def test_a_worker_is_told_that_its_job_was_reclaimed(executor_jobs: Rows) -> None:
    job = running(executor_jobs, locked_at=ago(35 * MINUTE))
    from_sql(executor_jobs)
    assert beat(executor_jobs, job, "executor-1") is False


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"locked_at": ago(14 * MINUTE)}, "healthy"),
        ({"locked_at": ago(16 * MINUTE)}, "late"),
        ({"locked_at": ago(31 * MINUTE)}, "stale"),
        ({"locked_at": None}, "unknown"),
        ({"type": "unheard-of"}, "no limit"),
    ],
)
def test_the_monitor_says_how_each_job_stands(
    executor_jobs: Rows, columns: dict[str, Any], state: str
) -> None:
    running(executor_jobs, **columns)
    [shown] = executor_jobs.sql("TABLE executor_jobs_stale_monitor")
    assert shown["state"] == state
    assert executor_jobs.sql("TABLE executor_jobs_stale_validation") == []
