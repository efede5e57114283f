"""The database's clock steps ahead between two passes: every lease looks as if it had run out."""

from datetime import UTC, datetime, timedelta

import pytest

from jobreaper import reap
from jobreaper.identity import machine
from jobreaper.models import ReaperPass
from jobreaper.reaper.hold import Moment, clock_jump_sec
from project.media.models import Job
from tests.rows import Rows, Sql

START = datetime(2026, 11, 28, 12, tzinfo=UTC)


def moment(database_sec: float, machine_sec: float) -> Moment:
    return Moment(START + timedelta(seconds=database_sec), 1000 + machine_sec)


NOW = moment(3660, 60)


@pytest.mark.parametrize(
    ("now", "earlier", "jump_sec"),
    [
        # No pass of this machine is known.
        (NOW, [], None),
        # Both clocks have gone on by as much, or nearly so.
        (moment(60, 60), [moment(0, 0)], None),
        (moment(75, 60), [moment(0, 0)], None),
        (moment(86_400 + 80, 86_400), [moment(0, 0)], None),
        # The database's has gone on by more.
        (moment(76, 60), [moment(0, 0)], 16),
        (NOW, [moment(0, 0)], 3600),
        (NOW, [moment(0, 0), moment(-60, -60), moment(-120, -120)], 3600),
        # A pass after the jump has been held, and its grace is over.
        (moment(3720, 120), [moment(3660, 60), moment(0, 0)], None),
        # A second jump.
        (moment(7320, 120), [moment(3660, 60), moment(0, 0)], 3600),
        # It was set back, or forth and back: no lease has run out by that.
        (moment(-3540, 60), [moment(0, 0)], None),
        (moment(120, 120), [moment(3660, 60), moment(0, 0)], None),
    ],
)
def test_a_jump_is_what_the_databases_clock_has_gone_on_more_than_the_machines(
    now: Moment, earlier: list[Moment], jump_sec: float | None
) -> None:
    assert clock_jump_sec(now, earlier, 15) == jump_sec


def set_ahead(sql: Sql, jobs: Rows, seconds: float) -> None:
    """Step the clock: what was recorded before lies so much further back."""
    sql("UPDATE jobreaper_passes SET started_at = started_at - %s", timedelta(seconds=seconds))
    for key in jobs.all():
        jobs.let_time_pass(key, seconds)


def let_grace_end(sql: Sql) -> None:
    """Let both clocks go on by more than the grace."""
    sql(
        "UPDATE jobreaper_passes SET started_at = started_at - interval '6 seconds',"
        " machine_sec = machine_sec - 6"
    )


@pytest.mark.usefixtures("calm")
def test_a_pass_after_a_jump_is_held_until_workers_have_beaten(jobs: Rows, sql: Sql) -> None:
    healthy, lost = jobs.plant_running(), jobs.plant_running()
    assert reap([Job]).requeued == 0
    set_ahead(sql, jobs, 3600)
    result = reap([Job])
    assert result.held_reason is not None
    assert result.held_reason.startswith("PostgreSQL's clock has jumped ahead by 3600 s; workers")
    assert result.requeued == 0
    assert reap([Job], dry_run=True).held
    sql("UPDATE jobs SET lease_expires_at = now() + interval '5 min' WHERE id = %s", healthy)
    # The grace after the held pass is over.
    let_grace_end(sql)
    result = reap([Job])
    assert (result.held, result.requeued_ids["jobs"]) == (False, [lost])


@pytest.mark.usefixtures("calm")
def test_an_operator_may_reap_after_a_jump_all_the_same(jobs: Rows, sql: Sql) -> None:
    key = jobs.plant_running()
    reap([Job])
    set_ahead(sql, jobs, 3600)
    assert reap([Job], hold=False).requeued_ids["jobs"] == [key]


@pytest.mark.usefixtures("calm")
def test_passes_of_other_machines_and_of_sql_say_nothing_about_this_ones_clock(
    jobs: Rows, sql: Sql
) -> None:
    jobs.sql("SELECT FROM jobs_reap()")
    reap([Job])
    assert ReaperPass.objects.latest("id").machine == machine()
    sql("UPDATE jobreaper_passes SET machine = 'another' WHERE machine IS NOT NULL")
    key = jobs.plant_running()
    set_ahead(sql, jobs, 3600)
    assert reap([Job]).requeued_ids["jobs"] == [key]


@pytest.mark.usefixtures("calm")
def test_without_a_jump_nothing_is_held(jobs: Rows, sql: Sql) -> None:
    for _ in range(12):
        assert not reap([Job]).held
    let_grace_end(sql)
    key = jobs.plant_expired()
    assert reap([Job]).requeued_ids["jobs"] == [key]
