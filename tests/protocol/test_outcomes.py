"""What is kept of an attempt: its result, or the exception with which it failed."""

from typing import Any

import pytest
from django.db import connection, transaction

import jobreaper
from jobreaper import BadResult, Lease, LeaseLost, claim, enqueue, mark_success
from jobreaper.models import Job, JobEvent
from jobreaper.protocol.outcome import LARGEST_RESULT_BYTES, LONGEST_TRACEBACK
from project.media.models import Job as MediaJob
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


SECRET = "-".join(["hunter", "2"])


class Rude(Exception):
    """An exception that can be neither printed nor pickled."""

    def __init__(self) -> None:
        self.lock = iter("")

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture
def lease() -> Lease:
    lease = claim(Job, enqueue("sum").pk)
    assert lease is not None
    return lease


def stored(lease: Lease) -> Any:
    return Job.objects.values_list("result", "status").get(pk=lease.pk)


RESULTS = [7, 0, False, "", [], {}, [1, {"a": None}], "ä\U0001f984", 1.5, {"n": 2**70}]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_is_stored_by_the_statement_that_finishes_the_job(
    result: Any, lease: Lease, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(1):
        lease.finish(result=result)
    assert stored(lease) == (result, "success")
    assert type(stored(lease)[0]) is type(result)


def test_a_result_of_almost_two_megabytes_is_stored(lease: Lease) -> None:
    result = "x" * (LARGEST_RESULT_BYTES - 2)
    lease.finish(result=result)
    assert stored(lease) == (result, "success")


BAD = [object(), {1, 2}, float("nan"), b"bytes", "\x00", "\ud83e", "x" * LARGEST_RESULT_BYTES]


@pytest.mark.parametrize("result", BAD, ids=[str(n) for n in range(len(BAD))])
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    result: Any, lease: Lease
) -> None:
    with pytest.raises(BadResult, match="result"):
        lease.finish(result=result)
    assert not lease.closed
    assert stored(lease) == (None, "processing")
    lease.finish(result="after all")
    assert stored(lease) == ("after all", "success")


def test_a_table_without_a_column_refuses_a_result_and_takes_none() -> None:
    lease = claim(MediaJob, MediaJob.objects.create().pk)
    assert lease is not None
    with pytest.raises(BadResult, match="jobs has no JSONField named result"):
        lease.finish(result=7)
    lease.finish()
    assert MediaJob.objects.get().status == "success"


def test_a_result_is_undone_with_the_transaction(lease: Lease) -> None:
    with transaction.atomic():
        lease.finish(result=7)
        transaction.set_rollback(True)
    assert stored(lease) == (None, "processing")


def test_a_stale_worker_stores_no_result(lease: Lease) -> None:
    jobreaper.requeue(Job, [lease.pk], by="ann")
    with pytest.raises(LeaseLost):
        lease.finish(result="stale")
    assert stored(lease) == (None, "queued")


def test_what_a_job_has_written_itself_stays(lease: Lease) -> None:
    lease.job.result = {"by": "itself"}
    lease.job.save(update_fields=["result"])
    mark_success(lease.pk)
    assert stored(lease) == ({"by": "itself"}, "success")


def test_saving_the_job_after_its_end_keeps_the_result(lease: Lease) -> None:
    lease.finish(result=7)
    lease.job.payload = {"noted": True}
    lease.job.save()
    assert stored(lease) == (7, "success")


def test_a_worker_in_another_language_finishes_without_one(sql: Sql) -> None:
    own = Rows(sql, "jobs")
    key = own.plant()
    [row] = sql("SELECT lease_epoch FROM jobs_claim('node:1:a', 1, NULL, %s)", key)
    [done] = sql("SELECT jobs_fail(%s, 'node:1:a', %s, 'oops', 'x')", key, row["lease_epoch"])
    assert done == {"jobs_fail": True}
    details = JobEvent.objects.get(type="job:retried").details
    assert (details["exception"], details["traceback"]) == (None, None)


# Failures.


def failed(lease: Lease, error: BaseException) -> dict[str, Any]:
    def deep(secret: str) -> None:
        raise error

    try:
        deep(SECRET)
    except BaseException as raised:
        lease.fail(raised)
    details: dict[str, Any] = JobEvent.objects.get(type="job:retried").details
    return details


def test_an_attempt_that_failed_has_the_class_and_the_traceback(lease: Lease) -> None:
    details = failed(lease, LookupError("no such pixel"))
    assert details["exception"] == "builtins.LookupError"
    assert details["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in deep\n    raise error" in details["traceback"]
    assert details["traceback"].endswith("LookupError: no such pixel\n")
    assert SECRET not in details["traceback"]


def test_an_exception_that_cannot_be_printed_fails_its_attempt_too(lease: Lease) -> None:
    details = failed(lease, Rude())
    assert details["exception"] == f"{__name__}.Rude"
    assert "in deep" in details["traceback"]
    assert Job.objects.get().fail_code == "Rude"


@pytest.mark.parametrize("message", ["x" * 10**6, "a\x00b\ud83e"])
def test_a_traceback_is_of_limited_length_and_can_be_stored(message: str, lease: Lease) -> None:
    traceback = failed(lease, ValueError(message))["traceback"]
    assert len(traceback) < LONGEST_TRACEBACK + 100
    assert "in deep" in traceback


def test_a_database_error_quotes_no_values(lease: Lease) -> None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT %s::int", [SECRET])
    except Exception as error:
        lease.fail(error)
        raised = error
    assert SECRET in str(raised)
    details = JobEvent.objects.get(type="job:retried").details
    assert details["exception"] == "django.db.utils.DataError"
    assert "invalid_text_representation" in details["traceback"]
    assert SECRET not in str(details)


def test_a_code_without_an_exception_has_neither(lease: Lease) -> None:
    lease.fail("busy", "the printer is")
    details = JobEvent.objects.get(type="job:retried").details
    assert (details["exception"], details["traceback"]) == (None, None)
