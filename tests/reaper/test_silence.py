"""Many workers fall silent at once: a pass gives them one grace before it takes their leases."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import override_settings
from pytest_django import Settings

from jobreaper import reap
from jobreaper.models import ReaperPass
from jobreaper.schema import functions
from jobreaper.sql import render as sql_of
from jobreaper.tables import table_of
from project.documents.models import ExecutorJob
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago, ahead

Reap = Callable[[], list[str]]

# As in `calm`.
GRACE_SEC = 5


def install() -> None:
    for made in functions.of_table(table_of(Job), connection):
        made.create(connection)


@pytest.fixture
def installed(calm: None) -> Iterator[None]:
    """The functions with the grace of `calm`."""
    install()
    yield
    with override_settings(JOBREAPER={}):
        install()


@pytest.fixture(params=["python", "function"])
def reaped(request: pytest.FixtureRequest, sql: Sql, installed: None) -> Reap:
    """Run a pass over `jobs` and return the keys of what it took."""
    if request.param == "python":
        return lambda: [str(key) for key in reap([Job]).requeued_ids["jobs"]]
    return lambda: [row["job_id"] for row in sql("SELECT * FROM jobs_reap()")]


def silence(jobs: Rows, worker: str, silent_sec: float, **columns: Any) -> str:
    """Plant a job of a worker that was last heard of so long ago."""
    times = {
        "claimed_at": ago(silent_sec + 60),
        "last_heartbeat_at": ago(silent_sec),
        "lease_expires_at": ago(silent_sec - 300),
    }
    return str(jobs.plant_running(**{"locked_by": f"{worker}:1:0", **times, **columns}))


def silences(jobs: Rows, workers: str, silent_sec: float = 301, **columns: Any) -> list[str]:
    """Plant a job of each of these workers."""
    return [silence(jobs, worker, silent_sec, **columns) for worker in workers]


def wells(jobs: Rows, workers: str) -> None:
    for worker in workers:
        jobs.plant_running(locked_by=f"{worker}:1:0")


def beat(jobs: Rows, key: str) -> None:
    jobs.set(key, last_heartbeat_at=ago(0), lease_expires_at=ahead(300))


def let_time_pass(jobs: Rows, seconds: float) -> None:
    for key in jobs.all():
        jobs.let_time_pass(key, seconds)
    jobs.sql(
        "UPDATE jobreaper_passes SET started_at = started_at - gone.by,"
        " silent_until = silent_until - gone.by,"
        " machine_sec = machine_sec - extract(epoch FROM gone.by)"
        " FROM (SELECT %s AS by) AS gone",
        timedelta(seconds=seconds),
    )


def reasons() -> list[str | None]:
    return list(ReaperPass.objects.order_by("id").values_list("held_reason", flat=True))


def totals(sql: Sql) -> dict[str, int]:
    rows = sql("SELECT name, sum(count)::int AS n FROM jobreaper_totals GROUP BY name")
    return {row["name"]: row["n"] for row in rows}


def test_who_beats_within_the_grace_keeps_its_lease(jobs: Rows, sql: Sql, reaped: Reap) -> None:
    dead, back, late = silences(jobs, "abc")
    wells(jobs, "de")
    assert reaped() == []
    assert jobs.row(dead)["status"] == "processing"
    let_time_pass(jobs, 2)
    beat(jobs, back)
    # Fewer are silent now, and they still have their time.
    assert reaped() == []
    beat(jobs, late)
    let_time_pass(jobs, GRACE_SEC - 2)
    assert reaped() == [dead]
    [first, second, last] = reasons()
    assert first == (
        "3 of 5 workers fell silent within 15 s of each other, which was first seen now; "
        "they have 5 s to beat again (RECOVERY_GRACE_SEC)"
    )
    assert second == (
        "2 workers that fell silent together are silent still, which was first seen 2 s ago; "
        "they have until 5 s after that to beat again (RECOVERY_GRACE_SEC)"
    )
    assert last is None
    counted = totals(sql)
    assert (counted["held_passes"], counted["common_silences"]) == (2, 1)


@pytest.mark.parametrize("pause_sec", [GRACE_SEC, 600])
def test_a_disaster_costs_one_grace(jobs: Rows, reaped: Reap, pause_sec: float) -> None:
    lost = silences(jobs, "abcdef")
    assert reaped() == []
    let_time_pass(jobs, pause_sec)
    assert sorted(reaped()) == sorted(lost)


@pytest.mark.parametrize("was_silent_before", [True, False])
def test_the_grace_after_a_restart_is_that_of_workers_which_were_silent_before(
    jobs: Rows, reaped: Reap, sql: Sql, was_silent_before: bool
) -> None:
    """The calm server came up longer ago than the grace, and no pass has looked since then."""
    sql(
        "INSERT INTO jobreaper_passes (started_at, reaper, trigger, counts)"
        " VALUES (pg_postmaster_start_time() - interval '1 hour', 'r', 'beat', '{}')"
    )
    [row] = sql(sql_of("statements/server_back"))
    silent_sec = row["up_sec"] + 60 if was_silent_before else GRACE_SEC
    at_once = {"claimed_at": ago(silent_sec + 9_000), "lease_expires_at": ago(1)}
    lost = silences(jobs, "abcd", silent_sec, **at_once)
    assert sorted(reaped()) == (sorted(lost) if was_silent_before else [])


@pytest.mark.parametrize(
    ("dead", "well"),
    [
        pytest.param([("a", 301)] * 10, "", id="ten jobs of one worker"),
        pytest.param([("a", 301), ("b", 301)], "", id="two jobs"),
        pytest.param([("a", 301), ("b", 317), ("c", 333)], "", id="one after another"),
        pytest.param([("a", 301), ("b", 301), ("c", 301)], "def", id="half of them"),
        pytest.param([("a", 4300), ("b", 4300), ("c", 4300)], "", id="long ago"),
    ],
)
def test_what_is_no_common_cause_is_taken_at_once(
    jobs: Rows, reaped: Reap, dead: list[tuple[str, float]], well: str
) -> None:
    lost = [silence(jobs, *worker) for worker in dead]
    wells(jobs, well)
    assert sorted(reaped()) == sorted(lost)
    assert reasons() == [None]


def test_leases_that_still_stand_show_silence_too(jobs: Rows, reaped: Reap) -> None:
    # The first lease of many has run out, and the others will in a moment.
    silence(jobs, "a", 301)
    silences(jobs, "bcd", 299)
    silences(jobs, "ef", 295, lease_expires_at=ahead(3000))
    assert reaped() == []
    assert str(reasons()[-1]).startswith("6 of 6 workers")


def test_a_deadline_ends_leases_of_healthy_workers(jobs: Rows, reaped: Reap) -> None:
    at_once = {"lease_expires_at": ago(1), "deadline_at": ago(1)}
    over = silences(jobs, "abcd", 3, **at_once)
    assert sorted(reaped()) == sorted(over)


def test_each_silence_has_a_grace_of_its_own(jobs: Rows, reaped: Reap) -> None:
    before = silences(jobs, "abc")
    assert reaped() == []
    let_time_pass(jobs, 600)
    # After the server came up: those that were silent before have had their grace.
    after = silences(jobs, "defg", 5, lease_expires_at=ago(1))
    assert sorted(reaped()) == before
    assert str(reasons()[-1]).startswith("4 of 4 workers")
    let_time_pass(jobs, GRACE_SEC)
    assert sorted(reaped()) == after
    assert reasons()[-1] is None


@pytest.mark.parametrize("pause_sec", [1.5, 600])
def test_workers_that_go_on_dying_do_not_stop_the_reaper(
    jobs: Rows, reaped: Reap, pause_sec: float
) -> None:
    planted: list[set[str]] = []
    taken: set[str] = set()
    for n in range(24):
        workers = "xyz"
        lost = {silence(jobs, f"{worker}{n}", 16, lease_expires_at=ago(1)) for worker in workers}
        planted.append(lost)
        taken |= set(reaped())
        let_time_pass(jobs, pause_sec)
        # Two graces at most, and the pass after that.
        due = planted[: max(0, n - int(2 * GRACE_SEC / pause_sec))]
        assert set().union(*due) <= taken


def test_any_number_of_reapers_agree(jobs: Rows, sql: Sql, installed: None) -> None:
    lost = silences(jobs, "abcd")
    for _ in range(3):
        assert reap([Job]).held
        assert sql("SELECT * FROM jobs_reap()") == []
    seen = ReaperPass.objects.exclude(silent_until=None)
    assert seen.count() == 1
    let_time_pass(jobs, GRACE_SEC)
    assert len(sql("SELECT * FROM jobs_reap(2)")) == 2
    assert len(reap([Job]).requeued_ids["jobs"]) == len(lost) - 2


@pytest.mark.usefixtures("transactional_db")
def test_no_hold_takes_them_at_once(jobs: Rows, settings: Settings) -> None:
    silences(jobs, "abcd")
    assert reap([Job], dry_run=True).held
    assert ReaperPass.objects.count() == 0
    assert reap([Job], dry_run=True, hold=False).requeued == 4
    assert reap([Job], hold=False).requeued == 4
    silences(jobs, "abcd")
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}
    assert reap([Job]).requeued == 4


@pytest.mark.usefixtures("transactional_db")
def test_one_look_sees_the_workers_of_all_tables(jobs: Rows, asr_jobs: Rows) -> None:
    silences(jobs, "ab")
    silences(asr_jobs, "cd")
    result = reap([Job, AsrJob])
    assert str(result.held_reason).startswith("4 of 4 workers")
    assert result.requeued == 0


@pytest.mark.usefixtures("transactional_db")
def test_heartbeats_without_leases_show_silence_too(sql: Sql) -> None:
    for worker in "abc":
        sql(
            "INSERT INTO executor_jobs (type, status, locked_by, locked_at, heartbeat_at)"
            " VALUES ('run_tsa', 'processing', %s, now() - interval '9 h',"
            " now() - interval '31 min')",
            worker,
        )
    assert reap([ExecutorJob]).requeued == 0
