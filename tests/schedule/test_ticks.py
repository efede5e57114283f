"""Each time of a schedule makes exactly one job, whoever looks, however often."""

from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from pytest_django import Settings

from jobreaper import (
    ConfigurationError,
    UnknownSchedule,
    job_handler,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from jobreaper.models import Job, Schedule
from jobreaper.schedule import Scheduler
from jobreaper.schedule.ticks import LONGEST_LOOK_SEC, SHORTEST_LOOK_SEC
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

Declare = Callable[..., None]


def declare_and_miss(sql: Sql, days: int, name: str = "report") -> None:
    """A worker has started with the schedule, and the last `days` times passed."""
    assert Scheduler().turn() > 0
    sql(
        "UPDATE jobreaper_schedules SET next_at = next_at - %s * interval '1 day' WHERE name = %s",
        days,
        name,
    )


def test_a_new_schedule_begins_with_its_next_time(scheduled: Declare) -> None:
    scheduled()
    assert SHORTEST_LOOK_SEC <= Scheduler().turn() <= LONGEST_LOOK_SEC
    schedule = Schedule.objects.get()
    now = datetime.now(UTC)
    assert schedule.next_at is not None
    assert schedule.next_at > now
    assert (schedule.next_at.hour, schedule.next_at.minute) == (6, 0)
    assert not Job.objects.exists()


def test_a_time_that_has_come_makes_one_job_however_many_look(
    scheduled: Declare, sql: Sql, rivals: Rivals
) -> None:
    scheduled(payload={"to": "all"}, org_id="acme", priority=3, max_attempts=40_000, stage="slow")
    declare_and_miss(sql, 1)
    [schedule] = Schedule.objects.all()
    calls = [rivals.start(lambda: Scheduler().turn()) for _ in range(8)]
    for call in calls:
        call.result()
    [job] = Job.objects.all()
    assert (job.type, job.payload, job.org_id) == ("report", {"to": "all"}, "acme")
    assert (job.priority, job.max_attempts, job.stage) == (3, 40_000, "slow")
    assert job.next_earliest_run_at == schedule.next_at
    schedule.refresh_from_db()
    assert (schedule.ticked_at, schedule.job_id) == (job.next_earliest_run_at, str(job.pk))
    assert schedule.next_at is not None
    assert schedule.next_at > datetime.now(UTC)


@pytest.mark.parametrize(("catch_up", "made"), [("last", 1), ("all", 5), ("none", 0)])
def test_times_that_were_missed(
    catch_up: str, made: int, scheduled: Declare, sql: Sql, jobs: Rows
) -> None:
    scheduled(catch_up=catch_up)
    declare_and_miss(sql, 5)
    scheduler = Scheduler()
    scheduler.turn()
    scheduler.turn()
    times = sorted(row["next_earliest_run_at"] for row in jobs.all().values())
    assert len(set(times)) == len(times) == made
    [row] = sql("SELECT next_at > now() AS is_ahead, ticked_at FROM jobreaper_schedules")
    assert row == {"is_ahead": True, "ticked_at": times[-1] if times else None}


def test_many_missed_times_are_made_up_for_a_part_at_a_time(scheduled: Declare, sql: Sql) -> None:
    scheduled(catch_up="all")
    declare_and_miss(sql, 250)
    scheduler = Scheduler()
    assert scheduler.turn() == SHORTEST_LOOK_SEC
    assert Job.objects.count() == 100
    scheduler.turn()
    scheduler.turn()
    assert Job.objects.count() == 250


def test_without_overlap_a_running_job_is_enough(scheduled: Declare, sql: Sql, jobs: Rows) -> None:
    scheduled(overlap=False)
    for _ in range(2):
        declare_and_miss(sql, 1)
        Scheduler().turn()
    assert len(jobs.all()) == 1
    sql("UPDATE jobreaper_jobs SET status = 'success'")
    declare_and_miss(sql, 1)
    Scheduler().turn()
    assert len(jobs.all()) == 2


def test_a_changed_schedule_begins_anew_and_the_old_version_makes_no_jobs(
    scheduled: Declare, sql: Sql
) -> None:
    scheduled()
    old = Scheduler()
    old.turn()
    scheduled(cron="0 7 * * *")
    declare_and_miss(sql, 1)
    scheduled()
    assert old.turn() == LONGEST_LOOK_SEC
    assert not Job.objects.exists()
    scheduled(cron="0 7 * * *")
    Scheduler().turn()
    assert Job.objects.count() == 1


def test_a_paused_schedule_lets_its_times_pass(scheduled: Declare, sql: Sql) -> None:
    scheduled()
    declare_and_miss(sql, 3)
    assert pause_schedule("report", by="ann")
    assert not pause_schedule("report", by="bob")
    Scheduler().turn()
    assert resume_schedule("report")
    assert not resume_schedule("report")
    Scheduler().turn()
    assert not Job.objects.exists()
    [row] = sql("SELECT next_at > now() AS is_ahead FROM jobreaper_schedules")
    assert row["is_ahead"]


def test_a_job_that_cannot_be_made_stops_no_other_and_is_tried_again(
    settings: Settings, sql: Sql
) -> None:
    daily = {"cron": "0 6 * * *"}
    settings.JOBREAPER = {"SCHEDULE": {"bad": daily, "good": daily}}
    sql("ALTER TABLE jobreaper_jobs ADD CONSTRAINT no_bad CHECK (type <> 'bad')")
    try:
        declare_and_miss(sql, 1, "bad")
        declare_and_miss(sql, 1, "good")
        Scheduler().turn()
        assert [job.type for job in Job.objects.all()] == ["good"]
        bad = Schedule.objects.get(name="bad")
        assert "no_bad" in str(bad.error)
    finally:
        sql("ALTER TABLE jobreaper_jobs DROP CONSTRAINT no_bad")
    sql("UPDATE jobreaper_schedules SET next_at = now() WHERE name = 'bad'")
    Scheduler().turn()
    assert sorted(job.type for job in Job.objects.all()) == ["bad", "good"]
    bad.refresh_from_db()
    assert bad.error is None


def test_a_schedule_whose_row_cannot_be_written_makes_no_job_and_stops_no_other(
    settings: Settings, sql: Sql
) -> None:
    daily = {"cron": "0 6 * * *"}
    settings.JOBREAPER = {"SCHEDULE": {"bad": daily, "good": daily}}
    Scheduler().turn()
    sql("UPDATE jobreaper_schedules SET next_at = next_at - interval '1 day'")
    sql("ALTER TABLE jobreaper_schedules ADD CONSTRAINT no_bad CHECK (name <> 'bad') NOT VALID")
    try:
        Scheduler().turn()
        Scheduler().turn()
    finally:
        sql("ALTER TABLE jobreaper_schedules DROP CONSTRAINT no_bad")
    assert [job.type for job in Job.objects.all()] == ["good"]


def test_a_job_now_leaves_the_times_as_they_are(scheduled: Declare) -> None:
    scheduled(overlap=False)
    Scheduler().turn()
    before = Schedule.objects.get()
    job, another = run_schedule("report"), run_schedule("report")
    assert Job.objects.filter(next_earliest_run_at__lte=datetime.now(UTC)).count() == 2
    after = Schedule.objects.get()
    assert job.pk != another.pk
    assert after.job_id == str(another.pk)
    assert (after.next_at, after.ticked_at) == (before.next_at, None)


def test_a_handler_declares_its_own_and_the_settings_win(settings: Settings) -> None:
    @job_handler("nightly", cron="30 2 * * *", timezone="Europe/Berlin", payload={"n": 1})
    @job_handler("hourly", cron="0 * * * *")
    def report(job: Any, lease: Any) -> None:
        """Nothing."""

    settings.JOBREAPER = {"SCHEDULE": {"hourly": None}}
    Scheduler().turn()
    found = Schedule.objects.get()
    assert found.name == "nightly"
    assert found.definition["timezone"] == "Europe/Berlin"
    settings.JOBREAPER = {"SCHEDULE": {"nightly": {"cron": "0 3 * * *"}, "hourly": None}}
    Scheduler().turn()
    found.refresh_from_db()
    assert found.definition["cron"] == "0 3 * * *"


def test_a_bad_schedule_is_refused_where_it_is_declared(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match=r"the schedule of .*report is bad: its cron is"):

        @job_handler("report", cron="nightly")
        def report(job: Any, lease: Any) -> None:
            """Nothing."""

    settings.JOBREAPER = {"SCHEDULE": {"report": {"cron": "x"}}}
    with pytest.raises(ConfigurationError, match=r"JOBREAPER\['SCHEDULE'\]\['report'\] has"):
        Scheduler().turn()


def test_the_tick_makes_jobs_and_runs_them(
    scheduled: Declare, sql: Sql, settings: Settings, client: Client
) -> None:
    ran: list[Any] = []
    job_handler("report")(lambda job, lease: ran.append(job.pk))
    scheduled()
    settings.JOBREAPER = {**settings.JOBREAPER, "TICK_TOKEN": "t"}
    declare_and_miss(sql, 1)
    answer = client.post("/api/jobs/tick", headers={"Authorization": "Bearer t"})
    assert answer.json() == {"ok": True, "claimed": 1, "succeeded": 1, "failed": 0}
    assert ran == [Job.objects.get().pk]


def test_the_command_lists_pauses_resumes_and_runs(scheduled: Declare) -> None:
    def run(*args: str) -> str:
        out = StringIO()
        call_command("schedule", *args, stdout=out)
        return out.getvalue()

    assert run() == "No worker has started with a schedule yet.\n"
    scheduled()
    with pytest.raises(CommandError, match="no worker has started with it yet"):
        run("pause", "report")
    Scheduler().turn()
    assert run().startswith("report: 0 6 * * * UTC, next 20")
    assert run("pause", "report") == "report is paused\n"
    assert run().endswith("last never, paused\n")
    assert run("resume", "report") == "report is resumed\n"
    assert run("run", "report") == f"report made the job {Job.objects.get().pk}\n"
    with pytest.raises(CommandError, match="no schedule 'reprot'; known here: report"):
        run("run", "reprot")
    with pytest.raises(UnknownSchedule):
        run_schedule("reprot")
