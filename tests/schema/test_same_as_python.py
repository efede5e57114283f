"""What the functions write is what Python writes: rows, events, epochs, backoff, verdicts."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.test import override_settings

import jobreaper
from jobreaper import conf
from jobreaper.db import MOST_NAMED_ROWS
from jobreaper.models import ReaperPass
from project.media.models import Job
from tests.rows import TIMES, Rows, ago, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")

# Different in every run, and rightly so.
PASSING = {"at", "reaper", "overdue_ms", "duration_ms", "queue_wait_ms", *TIMES}


def told(rows: Rows, key: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A job and its events, without what no two runs have in common; times as set or not."""
    row = {
        name: (value is not None if name in TIMES else value)
        for name, value in rows.row(key).items()
        if name not in ("id", "created_at", "updated_at")
    }
    events = rows.events(key)
    for event in events:
        event.pop("at")
        event["details"] = {
            name: (value is not None if name in PASSING else value)
            for name, value in event["details"].items()
        }
    return row, events


PLANTED: dict[str, dict[str, Any]] = {
    "attempts left": {},
    "second attempt": {"attempt_count": 2, "lease_epoch": 3},
    "no attempt left": {"attempt_count": 3},
    "a stage with a longer backoff": {"stage": "slow", "attempt_count": 2},
    "on_expiry": {"stage": "once"},
    "lost workers left": {"stage": "deadly", "reap_count": 0},
    "no lost worker left": {"stage": "deadly", "reap_count": 1},
    "beyond its deadline": {"deadline_at": ago(41)},
    "beyond its deadline for the last time": {"deadline_at": ago(41), "attempt_count": 3},
    "not due yet": {"next_earliest_run_at": ahead(60)},
    "not due yet and no attempt left": {"next_earliest_run_at": ahead(60), "attempt_count": 3},
    "alive": {"lease_expires_at": ahead(60)},
    "without a lease": {"lease_expires_at": None},
    "without a lease, with a ttl": {"stage": "silent", "lease_expires_at": None},
    "finished": {"status": "success"},
    "queued": {"status": "queued"},
    "a queer stage": {"stage": "it's {odd}\n%s"},
}

SETTINGS = {
    "HEARTBEAT_SEC": 1,
    "RECOVERY_GRACE_SEC": 0,
    "STAGES": {
        "slow": {"backoff": ["1m", "1h"]},
        "once": {"on_expiry": "fail"},
        "deadly": {"max_reaps": 2},
        "silent": {"ttl": "2m"},
        "clip": {"lease": "10m", "max_runtime": "1h"},
    },
}


@pytest.fixture
def policies(as_before: None) -> Any:
    with override_settings(JOBREAPER=SETTINGS):
        call_command("reaper_sql", "--install", "--table", "jobs", verbosity=0)
        yield
    conf.reset()


def by_python(jobs: Rows) -> None:
    assert jobreaper.reap([Job]).all_errors == []


def by_function(jobs: Rows) -> None:
    jobs.sql("SELECT * FROM jobs_reap()")


@pytest.mark.usefixtures("policies")
def test_verdicts(jobs: Rows) -> None:
    outcomes = []
    for reap in (by_python, by_function):
        keys = {name: jobs.plant_expired(**columns) for name, columns in PLANTED.items()}
        reap(jobs)
        outcomes.append({name: told(jobs, key) for name, key in keys.items()})
        jobs.sql("DELETE FROM jobs")
    for name in PLANTED:
        assert outcomes[0][name] == outcomes[1][name], name
    assert {outcome[0]["status"] for outcome in outcomes[0].values()} == {
        "queued", "failed", "processing", "success"
    }  # fmt: skip


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(("stage", "attempt", "wait_sec"), [("slow", 1, 60), ("slow", 2, 3600)])
def test_backoff(jobs: Rows, stage: str, attempt: int, wait_sec: int) -> None:
    reaped = jobs.plant_expired(stage=stage, attempt_count=attempt)
    failed = jobs.plant(stage=stage, attempt_count=attempt - 1)
    [claimed] = jobs.sql("SELECT * FROM jobs_claim('w1', job_id => %s)", failed)
    jobs.sql("SELECT jobs_reap()")
    jobs.sql("SELECT jobs_fail(%s, 'w1', %s, 'E1', 'oh')", failed, claimed["lease_epoch"])
    for key in (reaped, failed):
        due_in = (jobs.row(key)["next_earliest_run_at"] - jobs.now()).total_seconds()
        assert wait_sec - 5 < due_in <= wait_sec


@pytest.mark.usefixtures("policies")
def test_leases_and_deadlines(jobs: Rows) -> None:
    key = jobs.plant(stage="clip")
    jobs.sql("SELECT jobs_claim('w1', stages => ARRAY['clip'])")
    row = jobs.row(key)
    assert (row["lease_expires_at"] - row["claimed_at"]).total_seconds() == 600
    assert (row["deadline_at"] - row["claimed_at"]).total_seconds() == 3600
    jobs.set(key, deadline_at=ahead(100))
    assert jobs.sql("SELECT jobs_heartbeat(%s, 'w1', 1) AS held", key) == [{"held": True}]
    row = jobs.row(key)
    assert row["lease_expires_at"] == row["deadline_at"]


Verb = Callable[[Rows, int], object]
ENDINGS: dict[str, tuple[Verb, Verb]] = {
    "finish": (
        lambda jobs, key: claimed(key).finish(),
        lambda jobs, key: called(jobs, key, "jobs_finish(%s, 'w1', 1)"),
    ),
    "release": (
        lambda jobs, key: claimed(key).release(),
        lambda jobs, key: called(jobs, key, "jobs_release(%s, 'w1', 1)"),
    ),
    "fail": (
        lambda jobs, key: claimed(key).fail("E1", "it's {gone} %s"),
        lambda jobs, key: called(jobs, key, "jobs_fail(%s, 'w1', 1, 'E1', 'it''s {gone} %%s')"),
    ),
    "fail for the last time": (
        lambda jobs, key: claimed(key, jobs).fail("E1", None),
        lambda jobs, key: called(jobs, key, "jobs_fail(%s, 'w1', 1, 'E1', NULL)", last=True),
    ),
}


def claimed(key: int, last: Rows | None = None) -> Any:
    if last is not None:
        last.set(key, max_attempts=1)
    return jobreaper.claim(Job, key, worker="w1")


def called(jobs: Rows, key: int, call: str, last: bool = False) -> None:
    if last:
        jobs.set(key, max_attempts=1)
    jobs.sql("SELECT jobs_claim('w1', job_id => %s)", key)
    [row] = jobs.sql(f"SELECT {call} AS accepted", key)
    assert row["accepted"] is True


@pytest.mark.parametrize("verb", ENDINGS)
def test_endings(jobs: Rows, verb: str) -> None:
    outcomes = []
    for end in ENDINGS[verb]:
        key = jobs.plant(stage="clip")
        end(jobs, key)
        outcomes.append(told(jobs, key))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("verb", ["finish", "release", "fail"])
def test_a_stale_write_is_on_record_in_the_same_way(jobs: Rows, verb: str) -> None:
    arguments = "'w1', 1, 'E1', 'oh'" if verb == "fail" else "'w1', 1"
    key = jobs.plant_running(lease_epoch=5, locked_by="w2")
    [row] = jobs.sql(f"SELECT jobs_{verb}(%s, {arguments}) AS accepted", key)
    assert row["accepted"] is False
    [event] = jobs.events(key)
    assert event["type"] == "job:stale_write_rejected"
    details = event["details"]
    assert (details["verb"], details["locked_by"], details["epoch"]) == (verb, "w1", 1)
    assert (details["present_epoch"], details["present_locked_by"]) == (5, "w2")


def test_without_an_epoch_the_workers_name_is_the_proof(jobs: Rows) -> None:
    key = jobs.plant_running(lease_epoch=5, locked_by="w1")
    assert jobs.sql("SELECT jobs_heartbeat(%s, 'w1') AS held", key) == [{"held": True}]
    assert jobs.sql("SELECT jobs_heartbeat(%s, 'w2') AS held", key) == [{"held": False}]
    assert jobs.sql("SELECT jobs_finish(%s, 'w2') AS held", key) == [{"held": False}]
    assert jobs.sql("SELECT jobs_finish(%s, 'w1') AS held", key) == [{"held": True}]
    assert jobs.row(key)["status"] == "success"


def test_an_epoch_that_is_still_to_come_holds_nothing(jobs: Rows) -> None:
    key = jobs.plant_running(lease_epoch=5, locked_by="w1")
    before = jobs.row(key)
    assert jobs.sql("SELECT jobs_heartbeat(%s, 'w1', 6) AS held", key) == [{"held": False}]
    assert jobs.sql("SELECT jobs_finish(%s, 'w1', 6) AS held", key) == [{"held": False}]
    assert jobs.row(key) == before


def test_a_claim_takes_the_next_due_jobs_of_the_stages(jobs: Rows) -> None:
    late = jobs.plant(stage="clip", next_earliest_run_at=ago(10))
    later = jobs.plant(stage="clip", next_earliest_run_at=ago(5))
    jobs.plant(stage="asr", next_earliest_run_at=ago(20))
    jobs.plant(stage="clip", next_earliest_run_at=ahead(5))
    taken = jobs.sql("SELECT * FROM jobs_claim('w1', 5, ARRAY['clip'])")
    assert [row["id"] for row in taken] == [late, later]
    assert taken[0]["payload"] == {}


def test_a_paused_stage_is_not_claimed(jobs: Rows) -> None:
    jobs.plant(stage="clip")
    jobs.sql("INSERT INTO jobreaper_pauses (\"table\", name) VALUES ('jobs', 'clip')")
    assert jobs.sql("SELECT * FROM jobs_claim('w1')") == []


@pytest.mark.usefixtures("as_before")
def test_a_stage_is_kept_to_its_max_running(jobs: Rows) -> None:
    limits = {"clip": {"max_running": 2}, "asr's {one}": {"max_running": 1}}
    with override_settings(JOBREAPER={"STAGES": limits}):
        call_command("reaper_sql", "--install", "--table", "jobs", verbosity=0)
        for stage in ("clip", "clip", "clip", "asr's {one}", "asr's {one}", "free", "free"):
            jobs.plant(stage=stage)
        taken = jobs.sql("SELECT stage FROM jobs_claim('w1', 10) ORDER BY stage")
        assert [row["stage"] for row in taken] == ["asr's {one}", "clip", "clip", "free", "free"]
        assert jobs.sql("SELECT stage FROM jobs_claim('w1', 10)") == []
    conf.reset()


@pytest.mark.usefixtures("as_before")
def test_a_pass_is_held_after_a_restart(jobs: Rows) -> None:
    key = jobs.plant_expired()
    jobs.sql(
        "INSERT INTO jobreaper_passes (started_at, trigger, reaper, counts)"
        " VALUES ('2001-01-01', 'beat', 'r', '{}')"
    )
    with override_settings(JOBREAPER={"RECOVERY_GRACE_SEC": 999_999}):
        call_command("reaper_sql", "--install", "--table", "jobs", verbosity=0)
        assert jobs.sql("SELECT * FROM jobs_reap()") == []
        by_python = jobreaper.reap([Job])
        assert by_python.requeued == 0
    conf.reset()
    assert jobs.row(key)["status"] == "processing"
    function, python = ReaperPass.objects.filter(held=True).order_by("id")
    assert function.trigger == "sql"
    assert function.held_reason is not None
    assert python.held_reason is not None
    # The seconds since the start may have gone on by some.
    assert function.held_reason.split(";")[1] == python.held_reason.split(";")[1]


@pytest.mark.parametrize("by", ["function", "Python"])
def test_rows_that_cannot_be_written_stop_no_other_and_are_named(jobs: Rows, by: str) -> None:
    good = [jobs.plant_expired(stage="clip"), jobs.plant_expired(stage="bad", attempt_count=3)]
    bad = [jobs.plant_expired(stage="bad") for _ in range(2)]
    outcomes = {(str(good[0]), "requeued"), (str(good[1]), "failed")}
    refused = "stage = 'bad' AND status = 'queued'"
    jobs.sql(f"ALTER TABLE jobs ADD CONSTRAINT no_return CHECK (NOT ({refused}))")
    try:
        if by == "Python":
            jobreaper.reap([Job])
        else:
            reaped = jobs.sql("SELECT * FROM jobs_reap()")
            assert {(row["job_id"], row["outcome"]) for row in reaped} == outcomes
            assert jobs.sql("SELECT * FROM jobs_reap()") == []
    finally:
        jobs.sql("ALTER TABLE jobs DROP CONSTRAINT no_return")
    assert [jobs.row(key)["status"] for key in good] == ["queued", "failed"]
    assert {jobs.row(key)["status"] for key in bad} == {"processing"}
    assert jobs.event_types(bad[0]) == []
    done = ReaperPass.objects.earliest("id")
    assert (done.requeued, done.failed) == (1, 1)
    problems = sorted(str(done.error).splitlines())
    assert [line.split(": new row")[0] for line in problems] == [f"jobs: job {k}" for k in bad]
    assert all("no_return" in line for line in problems)
    clean = jobs.sql("SELECT name FROM jobreaper_totals WHERE name = 'clean_scans'")
    # The second call has left them out.
    assert len(clean) == (by == "function")
    remembered = jobs.sql("SELECT * FROM jobreaper_refused_rows ORDER BY key")
    assert [row["key"] for row in remembered] == sorted(map(str, bad))


@pytest.mark.parametrize("by", ["function", "Python"])
def test_a_row_that_a_triggers_assertion_refuses_stops_no_other(jobs: Rows, by: str) -> None:
    bad, good = jobs.plant_expired(stage="bad"), jobs.plant_expired()
    jobs.sql("""
        CREATE FUNCTION doubt() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN ASSERT new.stage IS DISTINCT FROM 'bad', 'doubt'; RETURN new; END $$
    """)
    jobs.sql("CREATE TRIGGER doubt BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION doubt()")
    try:
        if by == "Python":
            jobreaper.reap([Job])
        else:
            jobs.sql("SELECT * FROM jobs_reap()")
    finally:
        jobs.sql("DROP FUNCTION doubt CASCADE")
    assert [jobs.row(key)["status"] for key in (bad, good)] == ["processing", "queued"]
    assert ReaperPass.objects.get().error == f"jobs: job {bad}: doubt"


@pytest.fixture
def curse(jobs: Rows) -> Iterator[Callable[..., None]]:
    """Make updates of `jobs` fail."""

    def cast(each: str, code: str = "P0001") -> None:
        jobs.sql(f"""
            CREATE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE 'cursed' USING ERRCODE = '{code}'; END $$
        """)
        jobs.sql(
            f"CREATE TRIGGER curse BEFORE UPDATE ON jobs FOR EACH {each} EXECUTE FUNCTION curse()"
        )

    yield cast
    jobs.sql("DROP FUNCTION IF EXISTS curse CASCADE")


@pytest.mark.parametrize("batch", [1, 10, 1000])
def test_calls_until_nothing_comes_back_get_past_any_number_of_bad_rows(
    jobs: Rows, curse: Callable[..., None], batch: int
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    for _ in range(MOST_NAMED_ROWS + 5):
        jobs.plant_expired(stage="bad", lease_expires_at=ago(100))
    good = [str(jobs.plant_expired()) for _ in range(5)]
    reaped = []
    while rows := jobs.sql("SELECT * FROM jobs_reap(%s)", batch):
        reaped += [row["job_id"] for row in rows]
    assert sorted(reaped) == sorted(good)
    assert jobs.sql("SELECT count(*) FROM jobreaper_refused_rows") == [{"count": 25}]
    # A call has tried all, or enough to find one that could be written.
    first, *_, last = ReaperPass.objects.order_by("id")
    assert last.error is None
    if batch > MOST_NAMED_ROWS:
        *named, rest = str(first.error).splitlines()
        assert len(named) == MOST_NAMED_ROWS
        assert rest == "jobs: 5 more rows cannot be written"


@pytest.mark.parametrize("code", ["42501", "42P01", "0A000", "XX001", "08000"])
def test_a_row_is_passed_over_whatever_the_error(
    jobs: Rows, curse: Callable[..., None], code: str
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')", code=code)
    jobs.plant_expired(stage="bad", lease_expires_at=ago(100))
    good = jobs.plant_expired()
    assert [row["job_id"] for row in jobs.sql("SELECT * FROM jobs_reap()")] == [str(good)]


def test_a_locked_row_beside_a_bad_one_ends_no_call_early(
    jobs: Rows, curse: Callable[..., None], second_connection: psycopg.Connection[Any]
) -> None:
    curse(each="ROW WHEN (OLD.stage = 'bad')")
    locked, _, good = (
        jobs.plant_expired(stage=stage, lease_expires_at=ago(overdue))
        for stage, overdue in (("locked", 100), ("bad", 50), ("good", 10))
    )
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [locked])
    [row] = jobs.sql("SELECT * FROM jobs_reap(1)")
    assert row["job_id"] == str(good)
    assert jobs.sql("SELECT * FROM jobs_reap(1)") == []


def test_what_will_pass_is_raised(jobs: Rows, curse: Callable[..., None]) -> None:
    curse(each="ROW", code="40P01")
    jobs.plant_expired()
    with pytest.raises(psycopg.errors.DeadlockDetected):
        jobs.sql("SELECT * FROM jobs_reap()")


def test_the_error_of_a_table_that_refuses_every_update_is_raised(
    jobs: Rows, curse: Callable[..., None]
) -> None:
    curse(each="STATEMENT", code="42501")
    jobs.plant_expired()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        jobs.sql("SELECT * FROM jobs_reap()")


def test_an_error_of_the_whole_table_is_raised(jobs: Rows) -> None:
    jobs.plant_expired()
    jobs.sql("ALTER TABLE job_events RENAME TO elsewhere")
    try:
        with pytest.raises(psycopg.errors.UndefinedTable):
            jobs.sql("SELECT * FROM jobs_reap()")
    finally:
        jobs.sql("ALTER TABLE elsewhere RENAME TO job_events")
