"""``manage.py reap --watch``: how everything stands, on a terminal."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobreaper.models import ReaperPass, Worker
from project.media.models import Job
from tests.explaining.test_running import lost

pytestmark = pytest.mark.django_db


def shown(*arguments: str) -> str:
    out = StringIO()
    call_command("reap", "--watch", *arguments, stdout=out)
    return " ".join(out.getvalue().split())


def test_it_shows_the_headline_the_tables_the_workers_and_the_stuck_jobs() -> None:
    job = lost(120)
    Worker.objects.create(worker="web:1:a", kind="work", host="web", pid=1, version="0")
    said = shown()
    assert said.startswith("1 running job has lost its lease")
    assert "No pass of the reaper has ever run" in said
    assert "executor_jobs" in said
    assert "web:1:a" in said
    assert f"jobs {job.pk}" in said


def test_it_runs_no_pass() -> None:
    job = lost()
    shown("--table", "jobs")
    assert Job.objects.get(pk=job.pk).status == "processing"
    assert not ReaperPass.objects.exists()


def test_with_one_table_it_shows_only_that() -> None:
    said = shown("--table", "jobs")
    assert said.startswith("Nothing is stuck.")
    assert "executor_jobs" not in said


def test_an_unknown_table_is_bad_usage() -> None:
    with pytest.raises(CommandError) as caught:
        shown("--table", "no such table")
    assert caught.value.returncode == 2
