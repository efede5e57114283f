"""`job_events`: made by the migration, or adopted where somebody has it already."""

import uuid

import pytest
from django.db import ProgrammingError

from jobreaper import claim_next
from jobreaper.models import JobEvent
from jobreaper.states import EventType
from project.media.models import Job
from tests.migrations.conftest import Migrate, Sql

COLUMNS = {"id", "job_id", "data", "at", "type", "table"}
KEYS = {
    "text": "a-job",
    "varchar(64)": "a-job",
    "uuid": "01920000-0000-7000-8000-000000000001",
    "bigint": "7",
}
OLD_WRITER = "INSERT INTO job_events (job_id, data) VALUES (%s, %s)"
OLD_EVENT = '{"type": "ours:noted", "table": "jobs", "details": {"n": 1}}'


def columns(sql: Sql) -> dict[str, str]:
    return {
        row["column_name"]: row["data_type"]
        for row in sql(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_name = 'job_events'"
        )
    }


def indexes(sql: Sql) -> set[str]:
    return {
        row["indexname"]
        for row in sql("SELECT indexname FROM pg_indexes WHERE tablename = 'job_events'")
    }


def test_the_table_is_made_where_there_is_none(migrate: Migrate, sql: Sql) -> None:
    migrate("jobreaper")
    made = columns(sql)
    assert set(made) == COLUMNS
    # awx#9039: 32 bits are used up some day.
    assert (made["id"], made["job_id"], made["data"]) == ("bigint", "text", "jsonb")
    assert made["at"] == "timestamp with time zone"
    assert {"idx_job_events_job", "idx_job_events_at"} <= indexes(sql)


def test_a_writer_in_any_language_inserts_two_columns_and_nothing_else(
    migrate: Migrate, sql: Sql
) -> None:
    migrate("jobreaper")
    sql(OLD_WRITER, "a-job", OLD_EVENT)
    sql(OLD_WRITER, "a-job", '"not even an object"')
    first, second = JobEvent.objects.order_by("id")
    assert (first.type, first.table, first.details) == ("ours:noted", "jobs", {"n": 1})
    assert (second.type, second.table, second.details) == (None, None, {})
    assert first.id < second.id
    assert first.at is not None


@pytest.mark.parametrize("kind", KEYS)
def test_a_table_that_is_there_is_adopted_with_its_rows_and_writers(
    kind: str, migrate: Migrate, sql: Sql
) -> None:
    sql(f"CREATE TABLE job_events (job_id {kind} NOT NULL, data jsonb NOT NULL)")
    sql(OLD_WRITER, KEYS[kind], OLD_EVENT)
    migrate("jobreaper")
    sql(OLD_WRITER, KEYS[kind], OLD_EVENT)

    assert set(columns(sql)) == COLUMNS
    assert {"idx_job_events_job", "idx_job_events_at"} <= indexes(sql)
    events = JobEvent.objects.order_by("id")
    assert [(event.job_id, event.type, event.table) for event in events] == [
        (KEYS[kind], "ours:noted", "jobs")
    ] * 2
    assert len({event.id for event in events}) == 2


def test_a_writer_that_sends_its_keys_as_uuids_goes_on(migrate: Migrate, sql: Sql) -> None:
    sql("CREATE TABLE job_events (job_id uuid NOT NULL, data jsonb NOT NULL)")
    migrate("jobreaper")
    key = uuid.uuid4()
    sql(OLD_WRITER, key, OLD_EVENT)
    assert JobEvent.objects.get().job_id == str(key)


def test_a_table_with_json_in_text_form_is_adopted_too(migrate: Migrate, sql: Sql) -> None:
    sql("CREATE TABLE job_events (job_id text NOT NULL, data json NOT NULL)")
    sql(OLD_WRITER, "a-job", OLD_EVENT)
    migrate("jobreaper")
    sql("INSERT INTO job_events (job_id, data) VALUES ('a-job', %s::json)", OLD_EVENT)
    assert columns(sql)["data"] == "jsonb"
    assert [event.details for event in JobEvent.objects.all()] == [{"n": 1}] * 2


def test_columns_of_the_adopted_tables_own_are_kept(migrate: Migrate, sql: Sql) -> None:
    sql(
        "CREATE TABLE job_events (id bigserial PRIMARY KEY, job_id text NOT NULL,"
        " data jsonb NOT NULL, at timestamptz NOT NULL DEFAULT now(), trace text)"
    )
    sql("INSERT INTO job_events (job_id, data, trace) VALUES ('a-job', '{}', 'abc')")
    [before] = sql("SELECT id, job_id, data, at, trace FROM job_events")
    migrate("jobreaper")
    assert sql("SELECT id, job_id, data, at, trace FROM job_events") == [before]
    sql(OLD_WRITER, "a-job", OLD_EVENT)
    assert JobEvent.objects.count() == 2


def test_the_package_writes_its_own_events_into_an_adopted_table(
    migrate: Migrate, sql: Sql
) -> None:
    sql("CREATE TABLE job_events (job_id uuid NOT NULL, data jsonb NOT NULL)")
    migrate()
    sql("INSERT INTO jobs DEFAULT VALUES")
    [lease] = claim_next(Job)
    lease.finish()
    event = JobEvent.objects.get()
    assert (event.job_id, event.type) == (str(lease.pk), EventType.JOB_FINISHED)


REFUSED = {
    "ordinary columns": (
        'CREATE TABLE job_events (job_id text, data jsonb, type text, "table" text)',
        r'ordinary columns "table", type',
        'ALTER TABLE job_events RENAME type TO old_type; ALTER TABLE job_events RENAME "table" TO old_table',
    ),
    "a foreign key": (
        "CREATE TABLE clients (id uuid PRIMARY KEY); CREATE TABLE job_events"
        " (job_id uuid CONSTRAINT to_client REFERENCES clients, data jsonb)",
        "has a foreign key, and events must outlive their job",
        "ALTER TABLE job_events DROP CONSTRAINT to_client",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_that_cannot_be_adopted_is_named_left_alone_and_adopted_once_mended(
    what: str, migrate: Migrate, sql: Sql
) -> None:
    make, message, mend = REFUSED[what]
    sql(make)
    before = columns(sql)
    with pytest.raises(ProgrammingError, match=message) as refused:
        migrate("jobreaper")
    assert "migrate again" in str(refused.value)
    assert columns(sql) == before

    sql(mend)
    migrate("jobreaper")
    assert set(columns(sql)) >= COLUMNS
