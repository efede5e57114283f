"""The named backoff and the rule of retries: the same in Python and in SQL."""

from datetime import timedelta

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobreaper import can_retry, claim, conf, enqueue, get_backoff_delay_ms
from jobreaper.models import Job
from jobreaper.states import Status
from tests.rows import Rows

# What an example plants, the next one does not look at.
SHARED_TABLE = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

EXPONENTIAL = {"STAGES": {"mail": {"backoff": "exponential"}}}


def test_the_waits_double_from_one_second_to_a_minute() -> None:
    waits = [get_backoff_delay_ms(attempts) for attempts in range(10)]
    assert waits == [1000, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]


@given(st.integers(-5, 10_000))
def test_the_waits_keep_to_their_formula(attempts: int) -> None:
    assert get_backoff_delay_ms(attempts) == min(1000 * 2 ** max(attempts - 1, 0), 60_000)


def test_a_stage_asks_for_it_by_name() -> None:
    read, problems = conf.read(EXPONENTIAL, {})
    assert problems == []
    assert read.policy("mail").backoff_ms[:3] == (1000, 2000, 4000)


def test_a_name_that_does_not_exist_is_a_problem_that_names_the_one_that_does() -> None:
    _, [problem] = conf.read({"STAGES": {"mail": {"backoff": "linear"}}}, {})
    assert problem.id == "E002"
    assert "'exponential'" in problem.message


@pytest.mark.usefixtures("transactional_db")
@SHARED_TABLE
@given(st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_python_and_sql_agree_on_the_wait(jobs: Rows, attempts: list[int]) -> None:
    """`attempts` are the attempts before; a claim makes it one more."""
    with override_settings(JOBREAPER=EXPONENTIAL):
        for before in attempts:
            job = enqueue("mail", max_attempts=1000)
            jobs.set(job.pk, attempt_count=before)
            lease = claim(Job, job.pk)
            assert lease is not None
            lease.fail("E")
            [waited] = jobs.sql(
                """SELECT job.next_earliest_run_at - event.at AS wait
                     FROM jobreaper_jobs AS job JOIN job_events AS event
                       ON event.job_id = job.id::text AND event.type = 'job:retried'
                    WHERE job.id = %s""",
                job.pk,
            )
            expected = get_backoff_delay_ms(before + 1)
            assert waited["wait"] == timedelta(milliseconds=expected)


def test_a_success_and_what_runs_are_not_retried() -> None:
    assert not can_retry("success", 0)
    assert not can_retry("processing", 0)
    assert can_retry("failed", 4)
    assert not can_retry("failed", 5)
    assert can_retry("queued", 0, 1)


@pytest.mark.usefixtures("transactional_db")
@SHARED_TABLE
@given(
    st.lists(
        st.tuples(st.sampled_from(Status), st.integers(0, 6), st.integers(1, 6)),
        min_size=1,
        max_size=30,
    )
)
def test_python_and_sql_agree_on_what_can_be_retried(
    jobs: Rows, rows: list[tuple[Status, int, int]]
) -> None:
    jobs.sql("DELETE FROM jobreaper_jobs")
    expected = set()
    for status, attempts, most in rows:
        key = jobs.plant(status=status.value, attempt_count=attempts, max_attempts=most)
        if can_retry(status, attempts, most):
            expected.add(key)
    assert set(Job.objects.retryable().values_list("pk", flat=True)) == expected
