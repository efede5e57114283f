"""Many jobs at once: one statement, or none is made."""

import gc
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobreaper import (
    BadPayload,
    enqueue,
    enqueue_many,
    signals,
)
from jobreaper.models import Job
from jobreaper.queue.new_jobs import new_jobs
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


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
    monkeypatch.setattr("jobreaper.queue.enqueueing.ROWS_A_STATEMENT", 4)
    assert enqueue_many([{"type": "mail"}] * 10).made == 10
    assert len(jobs.all()) == 10
    with pytest.raises(BadPayload):
        enqueue_many([{"type": "mail"}] * 9 + [{"type": "mail", "payload": object()}])
    assert len(jobs.all()) == 10


def test_progress_is_told_while_no_more_jobs_than_of_one_statement_are_read_ahead(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.enqueueing.ROWS_A_STATEMENT", 4)
    read = 0
    told: list[tuple[int, int]] = []

    def given() -> Iterator[dict[str, Any]]:
        nonlocal read
        for n in range(14):
            read += 1
            yield {"payload": {"n": n}}

    enqueue_many(given(), type="mail", progress=lambda taken: told.append((taken, read)))
    # The second statement is read before the first is sent, to know whether there is one.
    assert told == [(4, 8), (8, 8), (12, 12), (14, 14)]
    assert len(jobs.all()) == 14


def test_what_yields_the_jobs_may_read_the_same_database_and_use_a_payload_again(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(({"payload": n} for n in range(10)), type="old")
    monkeypatch.setattr("jobreaper.queue.enqueueing.ROWS_A_STATEMENT", 3)
    payload: dict[str, Any] = {}

    def given() -> Iterator[dict[str, Any]]:
        # Over a cursor of the server's.
        for old in Job.objects.filter(type="old").order_by("pk").iterator(chunk_size=2):
            payload["of"] = old.payload
            Job.objects.filter(pk=old.pk).update(priority=1)
            yield {"payload": payload}

    made = enqueue_many(given(), type="new").ids
    rows = jobs.all()
    assert [rows[pk]["payload"] for pk in made] == [{"of": n} for n in range(10)]
    assert {row["priority"] for row in rows.values() if row["type"] == "old"} == {1}


def test_a_job_is_one_object_for_the_garbage_collector() -> None:
    given = [{"type": "mail", "payload": {"n": n}} for n in range(1000)]
    gc.collect()
    before = len(gc.get_objects())
    made = new_jobs(given)
    assert len(gc.get_objects()) - before < 1.1 * len(made.ids)


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


def test_each_event_tells_of_its_own_job(jobs: Rows) -> None:
    given: list[dict[str, Any]] = [
        {"priority": 1},
        {"queue": "slow"},
        {"priority": 1, "org_id": "a"},
        {"priority": 1},
    ]
    made = enqueue_many([*given, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)}], type="mail").ids
    told = jobs.sql(
        """SELECT job.id, details ->> 'priority' = priority::text AS priority,
                  details ->> 'queue' = queue AS queue,
                  details ->> 'org_id' IS NOT DISTINCT FROM org_id AS org,
                  (details ->> 'next_earliest_run_at')::timestamptz = next_earliest_run_at AS due
             FROM jobreaper_jobs AS job
             JOIN job_events AS event ON event.job_id = job.id::text,
                  LATERAL (SELECT data -> 'details' AS details) AS told
            ORDER BY job.id"""
    )
    right = dict.fromkeys(("priority", "queue", "org", "due"), True)
    assert told == [{"id": pk} | right for pk in made]


@pytest.mark.parametrize("mixed", [False, True])
def test_many_are_one_statement_where_they_have_one_way_and_one_transaction_where_not(
    mixed: bool,
) -> None:
    ways = [None, "replace"] if mixed else ["skip", None]
    with CaptureQueriesContext(connection) as queries:
        enqueue_many({"type": "a", "dedupe": way} for way in ways)
    sent = [query["sql"].split()[0] for query in queries.captured_queries]
    assert sent == (["BEGIN", "WITH", "WITH", "COMMIT"] if mixed else ["WITH"])


def test_where_one_of_mixed_ways_fails_none_is_made(
    jobs: Rows, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.db.retry.RETRIES", 0)
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
