"""Enqueue: one statement, in the caller's transaction, with its event."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobreaper import (
    BadPayload,
    cancel,
    claim,
    enqueue,
    enqueue_many,
    fail,
    make_dedupe_key,
    reap,
    requeue,
    signals,
)
from jobreaper.models import Job
from tests.rows import Rows, Sql, ago

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


# Dedupe.


def test_without_dedupe_nothing_is_merged_and_no_key_is_kept(jobs: Rows) -> None:
    assert enqueue("mail", {"a": 1}).pk != enqueue("mail", {"a": 1}).pk
    assert enqueue("mail", dedupe_key="k").pk != enqueue("mail", dedupe_key="k").pk
    assert {row["dedupe_key"] for row in jobs.all().values()} == {None}


def test_skip_returns_the_job_that_is_there_as_it_is(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 2.0, "b": 1}, org_id="acme", dedupe="skip")
    before = jobs.all()
    again = enqueue("mail", {"b": 1, "a": 2}, org_id="acme", dedupe="skip", priority=5)
    assert (again.pk, again.priority) == (job.pk, 0)
    assert jobs.all() == before
    assert job.dedupe_key == make_dedupe_key("mail", "acme", {"a": 2, "b": 1})
    assert jobs.event_types(job.pk) == ["job:enqueued"]


@pytest.mark.parametrize(
    "other", [{"org_id": "other"}, {"payload": {"a": 2}}, {"type": "sms"}, {"dedupe_key": "mine"}]
)
def test_another_type_owner_payload_or_key_is_another_job(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"type": "mail", "payload": {"a": 1}, "org_id": "acme", "dedupe": "skip"}
    assert enqueue(**same).pk != enqueue(**{**same, **other}).pk


def test_a_key_of_ones_own_takes_the_computed_ones_place(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="skip", dedupe_key="daily")
    assert enqueue("sms", {"b": 2}, dedupe="skip", dedupe_key="daily").pk == job.pk
    assert jobs.row(job.pk)["dedupe_key"] == "daily"


def test_replace_gives_a_queued_job_the_new_payload_and_time(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="replace", dedupe_key="k")
    jobs.set(job.pk, attempt_count=1, dispatched_at=ago(1))
    run_at = datetime(2030, 1, 1, tzinfo=UTC)
    again = enqueue("mail", {"a": 2}, run_at=run_at, priority=4, dedupe="replace", dedupe_key="k")
    row = jobs.row(job.pk)
    assert again.pk == job.pk
    assert (again.payload, again.next_earliest_run_at, again.priority) == ({"a": 2}, run_at, 4)
    assert (row["payload"], row["next_earliest_run_at"], row["priority"]) == ({"a": 2}, run_at, 4)
    assert (row["attempt_count"], row["dispatched_at"]) == (1, None)
    assert [event["details"]["replaced"] for event in jobs.events(job.pk)] == [False, True]


def test_replace_leaves_a_running_job_alone_and_returns_it(jobs: Rows) -> None:
    job = enqueue("mail", {"a": 1}, dedupe="replace", dedupe_key="k")
    claim(Job, job.pk)
    before = jobs.row(job.pk)
    again = enqueue("mail", {"a": 2}, dedupe="replace", dedupe_key="k")
    assert (again.pk, again.status, again.payload) == (job.pk, "processing", {"a": 1})
    assert jobs.all() == {job.pk: before}


@pytest.mark.parametrize("length", [1_000, 3_000, 1_000_000])
def test_a_long_payload_has_a_key_like_any_other(length: int, jobs: Rows) -> None:
    # Letters that do not compress: an index row holds 2,700 bytes.
    payload = {"text": "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(length))}
    job = enqueue("mail", payload, dedupe="skip")
    assert enqueue("mail", payload, dedupe="skip").pk == job.pk
    assert enqueue("mail", {**payload, "n": 1}, dedupe="skip").pk != job.pk
    assert jobs.row(job.pk)["dedupe_key"] == make_dedupe_key("mail", None, payload)


@pytest.mark.parametrize("key", ["back\\slash", "\\000", "'quote'", "%s", "ü\n😀"])
def test_any_text_is_a_key(key: str) -> None:
    job = enqueue("mail", dedupe="skip", dedupe_key=key)
    assert enqueue("mail", dedupe="skip", dedupe_key=key).pk == job.pk
    assert enqueue("mail", dedupe="skip", dedupe_key=key + "!").pk != job.pk


def end_by_success(job: Job) -> None:
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.finish()


def end_by_failure(job: Job) -> None:
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.fail("E", retry=False)


def end_by_cancel(job: Job) -> None:
    cancel(Job, [job.pk], by="ann")


def end_by_reaper(job: Job) -> None:
    claim(Job, job.pk)
    Job.objects.filter(pk=job.pk).update(lease_expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    assert reap([Job]).failed == 1


@pytest.mark.parametrize("end", [end_by_success, end_by_failure, end_by_cancel, end_by_reaper])
def test_a_key_is_free_again_when_its_job_has_ended(end: Any) -> None:
    """openedx#25461: a dead holder of a unique key must not block every new job."""
    job = enqueue("mail", dedupe="skip", max_attempts=1)
    end(job)
    again = enqueue("mail", dedupe="skip")
    assert again.pk != job.pk


def test_a_key_stays_taken_through_retries_and_reaps() -> None:
    job = enqueue("mail", dedupe="skip")
    lease = claim(Job, job.pk)
    assert lease is not None
    lease.fail("E")
    assert enqueue("mail", dedupe="skip").pk == job.pk


def test_an_operator_cannot_make_two_live_jobs_of_one_key() -> None:
    first, second = (ended_with_key() for _ in range(2))
    assert requeue(Job, [first.pk, second.pk], by="ann") == [second.pk]
    assert requeue(Job, [first.pk], by="ann") == []
    assert fail(Job, [second.pk], by="ann") == [second.pk]
    assert requeue(Job, [first.pk], by="ann") == [first.pk]


def ended_with_key() -> Job:
    job = enqueue("mail", dedupe="skip")
    end_by_failure(job)
    return job


def test_a_foreign_writer_is_held_to_unique_keys_too(jobs: Rows) -> None:
    jobs.plant(dedupe_key="k")
    with pytest.raises(psycopg.errors.UniqueViolation):
        jobs.plant(dedupe_key="k")
    jobs.plant(dedupe_key="k", status="success")


# Many at once.


def test_thousands_are_made_with_one_statement_and_counted(jobs: Rows) -> None:
    with CaptureQueriesContext(connection) as queries:
        result = enqueue_many(({"payload": {"n": n}} for n in range(3_000)), type="mail")
    assert len(queries) == 1
    assert (result.made, result.skipped, result.replaced) == (3_000, 0, 0)
    rows = jobs.all()
    assert [rows[pk]["payload"]["n"] for pk in result.ids] == list(range(3_000))
    [count] = jobs.sql("SELECT count(*) FROM job_events WHERE type = 'job:enqueued'")
    assert count == {"count": 3_000}


def test_more_than_one_statement_holds_are_made_all_or_none(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.ROWS_A_STATEMENT", 4)
    assert enqueue_many([{"type": "mail"}] * 10).made == 10
    assert len(jobs.all()) == 10
    with pytest.raises(BadPayload):
        enqueue_many([{"type": "mail"}] * 9 + [{"type": "mail", "payload": object()}])
    assert len(jobs.all()) == 10


def test_many_with_skip_counts_what_was_there_and_what_came_twice(jobs: Rows) -> None:
    there = enqueue("mail", {"n": 0}, dedupe="skip")
    result = enqueue_many([{"payload": {"n": n}} for n in (0, 1, 2, 1)], type="mail", dedupe="skip")
    assert (result.made, result.skipped, result.replaced) == (2, 2, 0)
    rows = jobs.all()
    assert [rows[pk]["payload"]["n"] for pk in result.ids] == [1, 2]
    assert rows.keys() == {there.pk, *result.ids}


def test_many_with_replace_lets_the_last_of_a_key_count(jobs: Rows) -> None:
    there = enqueue("mail", {"n": 0}, dedupe="skip", dedupe_key="a")
    result = enqueue_many(
        [
            {"payload": {"n": 1}, "dedupe_key": "a"},
            {"payload": {"n": 2}, "dedupe_key": "b"},
            {"payload": {"n": 3}, "dedupe_key": "b"},
        ],
        type="mail",
        dedupe="replace",
    )
    assert (result.made, result.skipped, result.replaced) == (1, 1, 1)
    assert jobs.row(there.pk)["payload"] == {"n": 1}
    assert jobs.row(result.ids[0])["payload"] == {"n": 3}


def test_each_of_many_may_have_its_own_way(jobs: Rows) -> None:
    result = enqueue_many(
        [
            {"type": "a", "dedupe": "skip"},
            {"type": "a"},
            {"type": "a", "dedupe": "replace", "priority": 1},
            {"type": "b", "run_at": datetime.now(UTC) + timedelta(days=1)},
        ]
    )
    assert (result.made, result.skipped, result.replaced) == (3, 0, 1)
    assert len(jobs.all()) == 3


@pytest.mark.parametrize("mixed", [False, True])
def test_many_are_one_statement_where_they_have_one_way_and_one_transaction_where_not(
    mixed: bool,
) -> None:
    ways = [None, "replace"] if mixed else ["skip", None]
    with CaptureQueriesContext(connection) as queries:
        enqueue_many({"type": "a", "dedupe": way} for way in ways)
    sent = [query["sql"].split()[0] for query in queries.captured_queries]
    assert sent == (["BEGIN", "--", "--", "COMMIT"] if mixed else ["--"])


def test_where_one_of_mixed_ways_fails_none_is_made(
    jobs: Rows, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.db.RETRIES", 0)
    held = enqueue("mail", dedupe="skip", dedupe_key="k")
    second_connection.execute("SELECT FROM jobreaper_jobs FOR UPDATE")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    try:
        with pytest.raises(OperationalError, match="lock timeout"):
            enqueue_many([{}, {"dedupe": "replace", "dedupe_key": "k"}], type="mail")
    finally:
        connection.close()
    assert list(jobs.all()) == [held.pk]


@pytest.fixture
def lost_answer(sql: Sql) -> Iterator[None]:
    """The connection ends after the first statement that makes jobs, and before its answer."""
    lost = False

    def lose(execute: Any, statement: str, *args: Any) -> Any:
        nonlocal lost
        answer = execute(statement, *args)
        if "INSERT INTO" in statement and not lost:
            lost = True
            sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
            execute("SELECT 1", None, *args[1:])
        return answer

    with connection.execute_wrapper(lose):
        yield
    assert lost


@pytest.fixture
def announced() -> Iterator[list[list[UUID]]]:
    """The keys of each batch of jobs that was announced."""
    heard: list[list[UUID]] = []

    def hear(pks: list[UUID], **_: Any) -> None:
        heard.append(pks)

    signals.jobs_enqueued.connect(hear)
    yield heard
    signals.jobs_enqueued.disconnect(hear)


class TestAnAnswerThatWasLost:
    """What the statement did is told by the next try."""

    @pytest.mark.parametrize("dedupe", [None, "skip", "replace"])
    def test_many_are_made_once_and_counted(
        self, dedupe: str | None, lost_answer: None, announced: list[list[UUID]], jobs: Rows
    ) -> None:
        result = enqueue_many([{"payload": {"n": n}} for n in range(3)], type="mail", dedupe=dedupe)
        assert (result.made, result.replaced, result.skipped) == (3, 0, 0)
        assert [jobs.row(pk)["payload"]["n"] for pk in result.ids] == [0, 1, 2]
        assert announced == [result.ids]
        assert [row["type"] for row in jobs.sql("SELECT type FROM job_events")] == (
            ["job:enqueued"] * 3
        )

    @pytest.mark.parametrize("dedupe", [None, "skip", "replace"])
    def test_one_is_made_once_and_announced(
        self, dedupe: str | None, lost_answer: None, announced: list[list[UUID]], jobs: Rows
    ) -> None:
        job = enqueue("mail", dedupe=dedupe)
        assert list(jobs.all()) == [job.pk]
        assert announced == [[job.pk]]

    def test_mixed_ways_are_made_once(self, lost_answer: None, jobs: Rows) -> None:
        result = enqueue_many([{}, {"dedupe": "replace"}], type="mail")
        assert (result.made, result.replaced, result.skipped) == (2, 0, 0)
        assert set(jobs.all()) == set(result.ids)

    @pytest.mark.parametrize("dedupe", [None, "skip", "replace"])
    def test_what_has_run_meanwhile_is_not_made_again(
        self, dedupe: str | None, lost_answer: None, jobs: Rows
    ) -> None:
        jobs.sql(
            """CREATE FUNCTION run_at_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   UPDATE jobreaper_jobs SET status = 'success' WHERE id::text = NEW.job_id;
                   RETURN NEW;
               END $$"""
        )
        jobs.sql(
            """CREATE CONSTRAINT TRIGGER run_at_once AFTER INSERT ON job_events
               DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION run_at_once()"""
        )
        try:
            result = enqueue_many([{"payload": 1}, {"payload": 2}], type="mail", dedupe=dedupe)
        finally:
            jobs.sql("DROP FUNCTION run_at_once() CASCADE")
        assert (result.made, len(jobs.all())) == (2, 2)


def test_none_is_none() -> None:
    assert enqueue_many([]).made == 0


def test_an_argument_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="prio"):
        enqueue_many([{"type": "mail", "prio": 1}])


def test_listeners_hear_of_what_is_due_when_it_is_committed(jobs: Rows, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN jobreaper_jobs")
        with transaction.atomic():
            enqueue_many([{"type": "mail"}] * 3)
            assert list(listener.notifies(timeout=0)) == []
        assert len(list(listener.notifies(timeout=20, stop_after=1))) == 1
        enqueue("mail", run_at=datetime(2100, 1, 1, tzinfo=UTC))
        enqueue("mail", dedupe="skip")
        enqueue("mail", dedupe="skip")
        enqueue("last")
        # One for each that was made due, none for the one of 2100 nor for the one skipped.
        assert len(list(listener.notifies(timeout=20, stop_after=2))) == 2
        assert list(listener.notifies(timeout=0)) == []


def test_the_payload_is_stored_as_json_has_it(jobs: Rows) -> None:
    job = enqueue("mail", {"t": (1, 2)})
    [row] = jobs.sql("SELECT payload::text FROM jobreaper_jobs WHERE id = %s", job.pk)
    assert json.loads(row["payload"]) == {"t": [1, 2]}
    assert job.payload == {"t": [1, 2]}
