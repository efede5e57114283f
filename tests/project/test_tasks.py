"""The media tasks do the work once, and leave alone what is no longer their own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery.exceptions import Ignore

from jobreaper import conf
from jobreaper.states import EventType, Status
from project.media import work
from project.media.models import AsrJob, Job
from project.media.tasks import extract_sound, render
from tests.project.processes import has_ended
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

Sql = Callable[..., list[dict[str, Any]]]

# Out of the hands of whoever holds it, and not due for a while.
TAKE_AWAY = """
    UPDATE jobs
       SET status = 'queued', lease_epoch = lease_epoch + 1, locked_by = NULL,
           lease_expires_at = NULL, next_earliest_run_at = now() + interval '1 hour'
     WHERE status = 'processing'
 RETURNING id
"""


def part_of(source: Path, **more: object) -> dict[str, Any]:
    return {"source": str(source), "seconds": 0.2, **more}


def whole(source: Path) -> dict[str, Any]:
    return {"source": str(source), "native_speed": True}


def run(job: Job | AsrJob) -> None:
    """Run the job's task in this process, as a message with its id does."""
    (render if isinstance(job, Job) else extract_sound)(job.pk)


def events_of(job: Job | AsrJob, sql: Sql) -> list[str]:
    rows = sql("SELECT type FROM job_events WHERE job_id = %s ORDER BY id", str(job.pk))
    return [row["type"] for row in rows]


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    with ThreadPoolExecutor() as executor:
        future = executor.submit(action)
        yield
        future.result()


@pytest.fixture
def _quick_beats() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEARTBEAT_SEC", "0.1")
        conf.reset()
        yield
    conf.reset()


@pytest.mark.parametrize(
    ("model", "stage", "name"),
    [
        (Job, "clip", "video-clip-{}.mp4"),
        (Job, "burnin", "video-burnin-{}.mp4"),
        (AsrJob, "asr", "video-asr-{}.wav"),
    ],
)
def test_a_due_job_is_claimed_done_and_finished_with_its_output(
    model: type[Job | AsrJob], stage: str, name: str, own_source: Path, sql: Sql
) -> None:
    job = model.objects.create(stage=stage, payload=part_of(own_source, text="Hello"))
    run(job)

    job.refresh_from_db()
    output = own_source.with_name(name.format(job.pk))
    assert job.status == Status.SUCCESS
    assert job.payload == part_of(own_source, text="Hello", output=str(output))
    assert output.stat().st_size > 0
    assert events_of(job, sql) == [EventType.JOB_FINISHED]
    assert set(own_source.parent.iterdir()) == {own_source, output}


@pytest.mark.parametrize(
    ("payload", "code", "reason"),
    [({"source": "/nowhere.mp4"}, "WorkFailed", "No such file"), ({}, "KeyError", "source")],
)
def test_work_that_fails_is_retried_later_with_the_reason_on_record(
    payload: dict[str, Any], code: str, reason: str, sql: Sql
) -> None:
    job = Job.objects.create(stage="clip", payload=payload)
    with pytest.raises(Exception, match=reason):
        run(job)
    job.refresh_from_db()
    assert (job.status, job.fail_code) == (Status.QUEUED, code)
    assert reason in (job.fail_reason or "")
    assert events_of(job, sql) == [EventType.JOB_RETRIED]


@pytest.mark.usefixtures("_quick_beats")
def test_a_worker_that_learns_of_its_loss_stops_and_writes_nothing(
    own_source: Path, sql: Sql
) -> None:
    job = Job.objects.create(stage="clip", payload=whole(own_source))
    with meanwhile(lambda: until(lambda: sql(TAKE_AWAY))), pytest.raises(Ignore):
        run(job)
    job.refresh_from_db()
    assert (job.status, job.payload) == (Status.QUEUED, whole(own_source))
    # It did not even try.
    assert events_of(job, sql) == []
    assert list(own_source.parent.iterdir()) == [own_source]


def test_a_worker_that_does_not_learn_of_its_loss_is_rejected_and_that_is_on_record(
    own_source: Path, sql: Sql
) -> None:
    job = Job.objects.create(stage="clip", payload=whole(own_source))
    with meanwhile(lambda: until(lambda: sql(TAKE_AWAY))), pytest.raises(Ignore):
        run(job)
    job.refresh_from_db()
    assert (job.status, job.payload) == (Status.QUEUED, whole(own_source))
    assert events_of(job, sql) == [EventType.JOB_STALE_WRITE_REJECTED]
    assert list(own_source.parent.iterdir()) == [own_source]


@pytest.mark.process
def test_ffmpeg_dies_with_a_killed_worker(own_source: Path, database_url: str) -> None:
    script = "import django; django.setup(); from project.media.tasks import render; render({})"
    job = Job.objects.create(stage="clip", payload=whole(own_source))
    worker = subprocess.Popen(
        [sys.executable, "-c", script.format(job.pk)],
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "DJANGO_SETTINGS_MODULE": "project.settings",
        },
    )
    try:
        until(lambda: list(own_source.parent.glob("*.part.mp4")))
        [ffmpeg] = psutil.Process(worker.pid).children()
    finally:
        worker.kill()
        worker.wait()
    until(lambda: has_ended(ffmpeg))
    # It did not come to the end of its work first.
    [part] = own_source.parent.glob("*.part.mp4")
    with pytest.raises(work.WorkFailed):
        work.run("asr", {"source": str(part)}, part.with_suffix(".wav"), keep_going=lambda: None)
