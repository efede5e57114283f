"""What stands still, whether the reaper is alive, and what happened of late."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils.timezone import now

import jobreaper
from jobreaper.models import ReaperPass
from jobreaper.overview import Span, headline, passes, reaper_now, series, stuck_jobs, table_now
from jobreaper.states import LeaseState, Status, Why
from jobreaper.tables import table_of
from project.documents.models import ExecutorJob
from project.media.models import Job
from tests.admin.conftest import claimed, execute, make_job
from tests.explaining.test_running import lost

pytestmark = pytest.mark.django_db


def stuck(**given: Any) -> list[Any]:
    return stuck_jobs([table_of(Job)], **given)


def test_nothing_is_stuck() -> None:
    make_job()
    claimed()
    found = table_now(connection, table_of(Job))
    assert stuck() == []
    assert headline([found], []) == ("Nothing is stuck.", "good")


def test_jobs_without_a_valid_lease_are_stuck_longest_first() -> None:
    recent, old = lost(60), lost(6000)
    found = stuck()
    assert [job.pk for job in found] == [old.pk, recent.pk]
    assert found[0].explanation.reasons[0].code is Why.EXPIRED
    said = headline([table_now(connection, table_of(Job))], found)
    assert said.tone == "bad"
    assert said.text.startswith("2 running jobs have lost their leases, the oldest for 1 h 40 min")


def test_a_due_job_that_waits_for_too_long_is_stuck() -> None:
    make_job(next_earliest_run_at=now() - timedelta(minutes=5))
    old = make_job(next_earliest_run_at=now() - timedelta(hours=5))
    execute("UPDATE jobs SET created_at = now() - interval '1 day'")
    [job] = stuck()
    assert job.pk == old.pk
    assert 5 * 3600 - 60 < job.age_sec < 5 * 3600 + 600


def test_the_headline_does_not_take_the_jobs_that_it_read_for_all_of_them() -> None:
    def said() -> str:
        execute("UPDATE jobs SET created_at = now() - interval '1 day'")
        return headline([table_now(connection, table_of(Job))], stuck()).text

    due_at = now() - timedelta(hours=5)
    Job.objects.bulk_create(Job(stage="clip", next_earliest_run_at=due_at) for _ in range(19))
    assert said().startswith("19 due jobs wait for too long")
    Job.objects.bulk_create(Job(stage="clip", next_earliest_run_at=due_at) for _ in range(6))
    assert said().startswith("At least 20 due jobs wait for too long")


def test_a_silent_job_of_a_table_without_leases_is_stuck() -> None:
    job = ExecutorJob.objects.create(
        type="run_tsa", status="running", locked_by="x", locked_at=now() - timedelta(hours=1)
    )
    assert [found.pk for found in stuck_jobs([table_of(ExecutorJob)])] == [job.pk]


def test_what_somebody_may_not_see_is_left_out() -> None:
    seen, hidden = lost(), lost()
    found = stuck(visible=lambda table, keys: [key for key in keys if key != hidden.pk])
    assert [job.pk for job in found] == [seen.pk]


def test_jobs_are_counted_by_status_and_lease() -> None:
    make_job()
    claimed()
    lost()
    claimed().finish()
    claimed().fail("boom", retry=False)
    found = table_now(connection, table_of(Job))
    assert found.standing is not None
    assert found.standing.queued == 1
    assert found.standing.leases[LeaseState.LIVE] == 1
    assert found.standing.leases[LeaseState.EXPIRED] == 1
    assert {status: count.number for status, count in found.ended.items()} == {
        Status.SUCCESS: 1,
        Status.FAILED: 1,
        Status.CANCELLED: 0,
    }


class TestReaper:
    def test_without_a_pass_nothing_reaps(self) -> None:
        found = reaper_now(connection)
        assert found.is_away
        assert found.tone == "bad"
        assert found.in_words == "No pass of the reaper has ever run in this database."

    def test_after_a_pass_it_says_when_the_next_one_is_expected(self) -> None:
        jobreaper.reap([Job])
        found = reaper_now(connection)
        assert found.tone == "good"
        assert "the next one is expected in" in found.in_words

    def test_a_held_pass_says_why(self) -> None:
        ReaperPass.objects.create(reaper="r", held=True, held_reason="so it is")
        found = reaper_now(connection)
        assert found.tone == "late"
        assert "It was held: so it is." in found.in_words

    def test_after_three_intervals_it_is_away(self) -> None:
        ReaperPass.objects.create(reaper="r", started_at=now() - timedelta(seconds=170))
        assert not reaper_now(connection).is_away
        ReaperPass.objects.all().update(started_at=now() - timedelta(seconds=190))
        assert reaper_now(connection).is_away


class TestSeries:
    @pytest.mark.parametrize("span", Span)
    def test_what_ended_is_counted_in_its_step(self, span: Span) -> None:
        claimed().finish()
        claimed().fail("boom", retry=False)
        claimed().fail("boom")
        lost()
        jobreaper.reap([Job], hold=False)
        steps = series(connection, span)
        assert len(steps) == span.value[0]
        assert [sum(getattr(step, name) for step in steps[-2:]) for name in COUNTS] == [1, 1, 1, 1]
        assert [sum(getattr(step, name) for step in steps[:-2]) for name in COUNTS] == [0] * 4

    def test_of_many_events_the_first_ones_stand_for_the_rest(self) -> None:
        execute(
            "INSERT INTO job_events (job_id, data, at) "
            """SELECT n, '{"type": "job:finished", "details": {"queue_wait_ms": 2000}}', """
            "       date_trunc('minute', now()) - interval '5 min' + n * interval '10 ms' "
            "  FROM generate_series(1, 5000) AS n"
        )
        [step] = [step for step in series(connection, Span.HOUR) if step.finished]
        assert step.is_rough
        assert 5500 <= step.finished <= 6500
        assert step.waited_sec == 2
        assert step.waited_longest_sec == 2

    def test_passes_are_counted_in_their_step(self) -> None:
        ReaperPass.objects.create(reaper="r", requeued=2, failed=1, duration_ms=30)
        ReaperPass.objects.create(reaper="r", held=True, duration_ms=40)
        steps = passes(connection, Span.DAY)
        assert sum(step.number for step in steps) == 2
        assert sum(step.requeued for step in steps) == 2
        assert sum(step.held for step in steps) == 1
        assert max(step.longest_ms for step in steps) == 40


COUNTS = ("finished", "retried", "failed", "requeued")
