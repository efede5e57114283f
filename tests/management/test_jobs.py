"""``manage.py jobs``: list, show and change jobs from a terminal."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils.timezone import now

from jobreaper.models import JobEvent
from jobreaper.states import EventType
from project.documents.models import ExecutorJob
from project.media.models import Job
from tests.admin.conftest import claimed, make_job
from tests.explaining.test_running import lost

pytestmark = pytest.mark.django_db


def run(*arguments: str, table: str = "jobs") -> str:
    out = StringIO()
    call_command("jobs", *arguments, "--table", table, stdout=out)
    return out.getvalue()


def answer(*arguments: str, table: str = "jobs") -> Any:
    return json.loads(run(*arguments, "--format", "json", table=table))


def listed(*arguments: str, table: str = "jobs") -> list[str]:
    return [job["key"] for job in answer("list", *arguments, table=table)]


def failed(code: str = "boom") -> str:
    lease = claimed()
    lease.fail(code, retry=False)
    return str(lease.pk)


class TestList:
    def test_the_newest_come_first_and_are_limited(self) -> None:
        keys = [str(make_job().pk) for _ in range(3)]
        assert listed() == keys[::-1]
        assert listed("--limit", "2") == keys[:0:-1]

    def test_filters_choose(self) -> None:
        queued, dub = str(make_job().pk), str(make_job(stage="dub").pk)
        running, stuck = str(claimed("w:1:a").pk), str(lost().pk)
        over, other = failed(), failed("bang")
        assert listed("--status", "queued") == [dub, queued]
        assert listed("--stage", "dub") == [dub]
        assert listed("--worker", "w:1:a") == [running]
        assert listed("--stuck") == [stuck]
        assert listed("--error", "boom") == [over]
        assert listed("--status", "failed") == [other, over]

    def test_text_has_a_line_for_each_job(self) -> None:
        job = make_job(next_earliest_run_at=now() + timedelta(hours=1))
        heading, line = run("list").splitlines()
        assert heading.split()[:3] == ["key", "status", "stage"]
        assert line.split()[:4] == [str(job.pk), "queued", "clip", "-"]

    def test_a_table_with_other_words_and_columns_is_listed_too(self) -> None:
        ExecutorJob.objects.create(type="a", status="dead", last_error="so it is")
        job = ExecutorJob.objects.create(type="b", status="running", locked_at=now())
        assert listed("--status", "processing", table="executor_jobs") == [str(job.pk)]
        assert "so it is" in run("list", "--status", "failed", table="executor_jobs")

    @pytest.mark.parametrize("option", ["--error", "--stuck"])
    def test_a_filter_that_a_table_has_no_column_for_is_bad_usage(self, option: str) -> None:
        value = ["x"] if option == "--error" else []
        with pytest.raises(CommandError) as caught:
            run("list", option, *value, table="executor_jobs")
        assert caught.value.returncode == 2


def test_show_has_the_row_and_the_explanation() -> None:
    job = lost()
    found = answer("show", str(job.pk))
    assert found["status"] == "processing"
    assert found["explanation"]["reasons"][0]["code"] == "expired"
    assert "Its lease ran out" in run("show", str(job.pk))


class TestChange:
    def test_each_verb_changes_the_jobs_that_are_named(self) -> None:
        over, later = failed(), make_job(next_earliest_run_at=now() + timedelta(hours=1))
        first, second = make_job(), make_job()
        assert answer("requeue", over, "--by", "ann", "--reason", "again")["changed"] == [over]
        assert answer("run-now", str(later.pk))["changed"] == [str(later.pk)]
        assert answer("fail", str(first.pk))["changed"] == [str(first.pk)]
        assert answer("cancel", str(second.pk))["changed"] == [str(second.pk)]
        statuses = [Job.objects.get(pk=key).status for key in (over, first.pk, second.pk)]
        assert statuses == ["queued", "failed", "cancelled"]
        details = JobEvent.objects.get(type=EventType.ADMIN_REQUEUED).details
        assert (details["by"], details["reason"]) == ("ann", "again")

    def test_filters_choose_if_it_is_asked_for_all(self) -> None:
        over, other = failed(), failed("bang")
        assert answer("requeue", "--error", "boom", "--all")["changed"] == [over]
        assert Job.objects.get(pk=other).status == "failed"

    def test_without_jobs_and_without_all_it_is_bad_usage(self) -> None:
        job = make_job()
        for arguments in ([], ["--stage", "clip"], [str(job.pk), "--all"], ["no number"]):
            with pytest.raises(CommandError) as caught:
                run("cancel", *arguments)
            assert caught.value.returncode == 2
        assert Job.objects.get(pk=job.pk).status == "queued"

    def test_what_could_not_be_changed_is_an_error(self) -> None:
        over = failed()
        with pytest.raises(CommandError) as caught:
            run("cancel", over)
        assert caught.value.returncode == 1
        assert over in str(caught.value)
