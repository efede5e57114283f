"""What `manage.py work` does beside running jobs, once however many workers do so."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from jobreaper import housekeeping
from jobreaper.housekeeping import Chore, add_chore, is_mine, kept_house
from jobreaper.models import Chore as DoneChore
from jobreaper.models import Job, ReaperPass
from jobreaper.schedule import Scheduler
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql, ago
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def own_chores() -> Iterator[None]:
    before = list(housekeeping._chores)
    yield
    housekeeping._chores[:] = before


def test_a_chore_is_done_by_one_of_many_and_again_after_its_interval(
    rivals: Rivals, sql: Sql
) -> None:
    for _ in range(2):
        asked = [rivals.start(lambda: is_mine("sweep", 60)) for _ in range(8)]
        assert sorted(each.result() for each in asked) == [False] * 7 + [True]
        assert not is_mine("sweep", 60)
        sql("UPDATE jobreaper_chores SET started_at = started_at - interval '1 minute'")


def test_who_comes_too_early_writes_nothing(sql: Sql) -> None:
    assert is_mine("sweep", 60)
    [before] = sql("SELECT xmin::text, xmax::text FROM jobreaper_chores")
    assert not is_mine("sweep", 60)
    assert sql("SELECT xmin::text, xmax::text FROM jobreaper_chores") == [before]


def test_it_reaps_makes_the_jobs_of_schedules_and_prunes(
    settings: Settings, jobs: Rows, sql: Sql
) -> None:
    settings.JOBREAPER = {
        "RECOVERY_GRACE_SEC": 0,
        "SCHEDULE": {"idle": {"cron": "0 6 * * *"}},
        "RETENTION": {"success": "1d"},
    }
    Scheduler().turn()
    sql("UPDATE jobreaper_schedules SET next_at = now()")
    expired = jobs.plant_expired()
    old = jobs.plant(status="success", finished_at=ago(200_000))
    with kept_house():
        until(lambda: jobs.row(expired)["status"] == "queued")
        until(lambda: not Job.objects.filter(pk=old).exists())
        until(lambda: Job.objects.filter(dedupe_key__startswith="schedule:idle").exists())
    assert set(ReaperPass.objects.values_list("trigger", flat=True)) == {"work"}
    assert {"reap", "prune"} <= set(DoneChore.objects.values_list("name", flat=True))


def test_a_chore_that_fails_stops_no_other_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    monkeypatch.setattr(housekeeping, "AGAIN_SEC", 0.05)

    def fail() -> None:
        done.append("bad")
        raise ValueError("odd")

    housekeeping._chores.clear()
    add_chore(Chore("bad", lambda: 0.0, fail))
    add_chore(Chore("good", lambda: 0.05, lambda: done.append("good")))
    add_chore(Chore("unwanted", lambda: None, lambda: done.append("unwanted")))
    with kept_house():
        until(lambda: done.count("bad") >= 2 and done.count("good") >= 2)
    assert "unwanted" not in done
    assert "bad failed; it is tried again" in caplog.text
