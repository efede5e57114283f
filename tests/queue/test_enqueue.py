"""Enqueue: one statement, in the caller's transaction, with its event."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobreaper import (
    enqueue,
    enqueue_many,
    signals,
)
from jobreaper.models import Job
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_a_job_is_there_as_it_was_asked_for(jobs: Rows) -> None:
    run_at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    job = enqueue(
        "mail",
        {"to": ["ä"], "n": 2.0},
        org_id=7,
        run_at=run_at,
        stage="smtp",
        max_attempts=9,
        priority=-3,
    )
    row = jobs.row(job.pk)
    assert {name: getattr(job, name) for name in row} == row
    assert (row["type"], row["stage"], row["org_id"]) == ("mail", "smtp", "7")
    assert row["payload"] == {"to": ["ä"], "n": 2.0}
    assert (row["status"], row["max_attempts"], row["priority"]) == ("queued", 9, -3)
    assert (row["next_earliest_run_at"], row["dedupe_key"]) == (run_at, None)


def test_a_job_without_wishes_is_due_now_and_its_type_is_its_stage(jobs: Rows) -> None:
    row = jobs.row(enqueue("mail").pk)
    assert (row["stage"], row["payload"], row["org_id"], row["priority"]) == ("mail", {}, None, 0)
    assert row["max_attempts"] == 3
    assert row["next_earliest_run_at"] == row["created_at"]


def test_an_owner_without_a_name_is_nobody(jobs: Rows) -> None:
    assert jobs.row(enqueue("mail", org_id="").pk)["org_id"] is None


def test_a_job_saved_by_django_has_its_type_for_a_stage_too() -> None:
    assert Job.objects.create(type="mail").stage == "mail"
    assert Job.objects.create(type="mail", stage="smtp").stage == "smtp"


def test_one_statement_writes_the_job_and_its_event(jobs: Rows) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        job = enqueue("mail", {"to": "x"}, org_id="acme", dedupe="skip")
    assert len(queries) == 1
    [event] = jobs.events(job.pk)
    row = jobs.row(job.pk)
    due = row["next_earliest_run_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert event == {
        "type": "job:enqueued",
        "table": "jobreaper_jobs",
        "details": {
            "type": "mail",
            "stage": "mail",
            "queue": "default",
            "org_id": "acme",
            "priority": 0,
            "replaced": False,
            "next_earliest_run_at": due,
        },
        "at": due,
    }


def test_it_is_part_of_the_callers_transaction(jobs: Rows) -> None:
    announced: list[Any] = []

    def note(pks: Any, **_: Any) -> None:
        announced.extend(pks)

    signals.jobs_enqueued.connect(note)
    try:
        with transaction.atomic():
            enqueue("mail")
            enqueue_many([{}], type="mail")
            transaction.set_rollback(True)
        assert (jobs.all(), jobs.sql("TABLE job_events"), announced) == ({}, [], [])
        with transaction.atomic():
            job = enqueue("mail")
            assert announced == []
        assert announced == [job.pk]
    finally:
        signals.jobs_enqueued.disconnect(note)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": ""},
        {"type": None},
        {"type": "a\x00"},
        {"type": "\ud83d"},
        {"stage": ""},
        {"org_id": "\x00"},
        {"priority": 2**15},
        {"priority": 1.0},
        {"priority": True},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
        {"run_at": "tomorrow"},
        {"run_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))},
        {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))},
        {"dedupe": "always"},
        {"dedupe": "skip", "dedupe_key": ""},
        {"payload": {1: 2}},
        {"payload": object()},
        {"payload": "\x00"},
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    wrong: dict[str, Any], jobs: Rows
) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(ValueError, match=r"\w"):
        enqueue(**{"type": "mail", **wrong})
    assert len(queries) == 0
    with pytest.raises(ValueError, match=r"\w"):
        enqueue_many([{"type": "mail"}, {"type": "mail", **wrong}])
    assert jobs.all() == {}


def test_what_dedupe_may_be_is_said_in_the_words_to_write() -> None:
    with pytest.raises(ValueError, match="must be None, 'skip', 'replace', not 'always'"):
        enqueue("mail", dedupe="always")


def test_a_naive_time_is_in_the_current_time_zone(settings: Any, jobs: Rows) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    job = enqueue("mail", run_at=datetime(2030, 1, 1, 9))
    assert jobs.row(job.pk)["next_earliest_run_at"] == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "moment"),
    [("America/New_York", datetime.max), ("Asia/Tokyo", datetime.min)],
)
def test_a_naive_time_beyond_what_can_be_read_back_is_refused(
    zone: str, moment: datetime, settings: Any, jobs: Rows
) -> None:
    settings.TIME_ZONE = zone
    with pytest.raises(ValueError, match="years 1 to 9999"):
        enqueue("mail", run_at=moment)
    assert jobs.all() == {}


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_the_first_and_the_last_moment_are_times(moment: datetime, jobs: Rows) -> None:
    moment = moment.replace(tzinfo=UTC)
    assert enqueue("mail", run_at=moment).next_earliest_run_at == moment
    assert enqueue_many([{"run_at": moment}], type="mail").made == 1


@pytest.mark.parametrize(
    ("zone", "moment"),
    [("Asia/Tokyo", datetime.max), ("America/New_York", datetime.min)],
)
def test_a_time_that_the_zone_of_the_connection_does_not_have_is_refused(
    zone: str, moment: datetime, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "timezone_name", zone)
    with pytest.raises(ValueError, match="run_at"):
        enqueue("mail", run_at=moment.replace(tzinfo=UTC))
    assert jobs.all() == {}


def test_a_payload_of_megabytes_is_kept_whole(jobs: Rows) -> None:
    text = "x" * 5_000_000
    assert jobs.row(enqueue("mail", {"text": text}).pk)["payload"] == {"text": text}


def test_jobs_enqueued_one_after_another_are_claimed_in_that_order() -> None:
    made = [enqueue("mail").pk for _ in range(5)]
    made += enqueue_many([{"type": "mail"}] * 5).ids
    claimed = [lease.pk for n in (3, 4, 3) for lease in claim_some(n)]
    assert claimed == made


def claim_some(n: int) -> Any:
    from jobreaper import claim_next

    return claim_next(Job, n)
