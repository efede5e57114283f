"""What the page says of schedules."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper import pause_schedule
from jobreaper.metrics import schedules
from jobreaper.schedule import Scheduler
from tests.metrics.page import Page, Sql, scrape

pytestmark = pytest.mark.usefixtures("transactional_db")

PREFIX = "jobreaper_schedule_"

Declare = Callable[..., None]


@pytest.fixture
def declare(settings: Settings) -> Declare:
    """Declare schedules, and let a worker start with them."""

    def declared(*names: str, **options: Any) -> None:
        one = {"type": "report", "cron": "0 6 * * *", **options}
        settings.JOBREAPER = {"SCHEDULE": dict.fromkeys(names, one)}
        Scheduler().turn()

    return declared


def told(page: Page, name: str) -> dict[str, float]:
    """The samples of one schedule by the rest of their names."""
    return {
        full.removeprefix(PREFIX): series[labels]
        for full, series in page.samples.items()
        for labels in series
        if full.startswith(PREFIX) and dict(labels) == {"schedule": name}
    }


def test_a_schedule_has_a_next_time_and_then_a_last_one(declare: Declare, sql: Sql) -> None:
    declare("report")
    before = told(scrape(), "report")
    assert before.keys() == {
        "next_timestamp_seconds",
        "overdue_seconds",
        "paused",
        "failing",
    }
    assert 0 < before["next_timestamp_seconds"] - datetime.now(UTC).timestamp() <= 86_400
    assert (before["overdue_seconds"], before["paused"], before["failing"]) == (0, 0, 0)
    sql("UPDATE jobreaper_schedules SET next_at = next_at - interval '1 day'")
    Scheduler().turn()
    after = told(scrape(), "report")
    assert after["next_timestamp_seconds"] == before["next_timestamp_seconds"]
    assert after["last_timestamp_seconds"] == before["next_timestamp_seconds"] - 86_400
    assert after["overdue_seconds"] == 0


def test_one_whose_time_has_passed_is_overdue_unless_it_is_paused(
    declare: Declare, sql: Sql
) -> None:
    declare("report")
    sql("UPDATE jobreaper_schedules SET next_at = now() - interval '1 hour'")
    assert told(scrape(), "report")["overdue_seconds"] == pytest.approx(3600, abs=30)
    pause_schedule("report")
    paused = told(scrape(), "report")
    assert (paused["overdue_seconds"], paused["paused"]) == (0, 1)


def test_one_whose_job_cannot_be_made_is_failing(declare: Declare, sql: Sql) -> None:
    declare("report")
    sql("UPDATE jobreaper_schedules SET error = 'refused'")
    assert told(scrape(), "report")["failing"] == 1


def test_one_that_is_declared_no_more_is_not_waited_for(declare: Declare, sql: Sql) -> None:
    declare("old")
    declare("report")
    sql("UPDATE jobreaper_schedules SET next_at = now() - interval '1 hour' WHERE name = 'old'")
    page = scrape()
    assert told(page, "old") == {}
    assert told(page, "report")


def test_names_are_bounded_and_the_worst_of_the_others_is_told(
    declare: Declare, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "MOST_SCHEDULES", 2)
    declare("a", "b", "c", "d", "e")
    sql("UPDATE jobreaper_schedules SET next_at = now() - interval '1 hour' WHERE name = 'd'")
    sql("UPDATE jobreaper_schedules SET error = 'refused' WHERE name = 'e'")
    page = scrape()
    [names] = {
        frozenset(dict(labels)["schedule"] for labels in page.samples[f"{PREFIX}{name}"])
        for name in ("paused", "failing", "overdue_seconds", "next_timestamp_seconds")
    }
    assert names == {"a", "b", "other"}
    others = told(page, "other")
    assert others["overdue_seconds"] == pytest.approx(3600, abs=30)
    assert (others["failing"], others["paused"]) == (1, 0)
