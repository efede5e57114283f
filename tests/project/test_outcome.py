"""The demo's final table tells a loss when there is one."""

from pathlib import Path
from typing import Any

import pytest

from jobreaper.models import JobEvent
from jobreaper.states import EventType, Status
from project.demo.outcome import Expected, sum_up
from project.demo.screen import Screen
from project.media.models import AsrJob, Job

pytestmark = pytest.mark.django_db

WORKER = "host:1:token"


def write_event(kind: EventType, job: Job | AsrJob) -> None:
    details = {"locked_by": WORKER}
    data = {"type": kind, "table": job._meta.db_table, "details": details}
    JobEvent.objects.create(job_id=str(job.pk), data=data)


@pytest.fixture
def done(tmp_path: Path) -> Job:
    """A job that came to a good end."""
    output = tmp_path / "clip.mp4"
    output.write_bytes(b"video")
    job = Job.objects.create(stage="clip", status=Status.SUCCESS, payload={"output": str(output)})
    write_event(EventType.JOB_FINISHED, job)
    return job


def total(printed: str) -> list[int]:
    *_, last = printed.strip().splitlines()
    name, *numbers = last.split()
    assert name == "total"
    return [int(number) for number in numbers]


def test_the_table_counts_jobs_and_events_of_both_tables(
    done: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = AsrJob.objects.create(stage="asr", status=Status.FAILED, fail_code="timeout")
    write_event(EventType.REAPER_REQUEUED, done)
    write_event(EventType.REAPER_REQUEUED, failed)
    write_event(EventType.JOB_STALE_WRITE_REJECTED, failed)
    problems = sum_up(Screen(), [])
    # jobs, succeeded, requeued, failed, lost, stale writes rejected
    assert total(capsys.readouterr().out) == [2, 1, 2, 1, 0, 1]
    assert problems == [f"{failed} failed: timeout: None"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": Status.QUEUED},
        {"status": Status.PROCESSING},
        {"status": Status.SUCCESS},
        {"status": Status.SUCCESS, "payload": {"output": "/nowhere.mp4"}},
    ],
)
def test_a_job_without_an_end_or_without_its_output_is_lost(
    done: Job, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job.objects.create(stage="clip", **fields)
    [problem] = sum_up(Screen(), [])
    assert problem.startswith(f"{job} is lost")
    assert total(capsys.readouterr().out)[4] == 1


def test_a_job_finished_twice_is_a_problem(done: Job) -> None:
    write_event(EventType.JOB_FINISHED, done)
    assert sum_up(Screen(), []) == [f"{done} was finished 2 times"]


def test_an_expected_event_that_is_missing_is_a_problem(done: Job) -> None:
    expected = [Expected((EventType.REAPER_REQUEUED,), done, WORKER)]
    assert sum_up(Screen(), expected) == [f"no event reaper:requeued of {done} and {WORKER}"]
    write_event(EventType.REAPER_REQUEUED, done)
    assert sum_up(Screen(), expected) == []
