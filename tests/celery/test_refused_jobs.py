"""The dispatcher where the database refuses to mark a queued row as sent."""

from typing import Any

import pytest
from celery import Celery

from jobreaper.celery.dispatcher import dispatch, dispatch_job, send_enqueued
from jobreaper.models import Job
from jobreaper.tasks import dispatch as dispatch_task
from tests.celery.brokers import Queue, celery_app, job_ids, leased
from tests.refusals import WAYS, refusing
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

BAD = '{"bad": true}'


def nothing(job: Any, lease: Any) -> None: ...


@pytest.fixture
def queue(one_app: Celery) -> Queue:
    leased(one_app, name="tests.any")(nothing)
    return Queue(one_app)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_cannot_be_marked_keeps_no_other_from_being_sent(
    way: str, limited: bool, queue: Queue, jobs: Rows, sql: Sql, settings: Any
) -> None:
    if limited:
        settings.JOBREAPER = {"STAGES": {"mail": {"max_running": 100}}}
    bad = jobs.plant(payload=BAD, priority=9, stage="mail")
    good = [str(jobs.plant(stage="mail")) for _ in range(4)]
    with refusing(sql, "jobreaper_jobs", way):
        done = dispatch(batch_size=2)
        assert (done.sent["jobreaper_jobs"], done.errors) == (2, [])
        [remembered] = sql("SELECT * FROM jobreaper_refused_rows")
        assert (remembered["verb"], remembered["key"]) == ("claim", str(bad))
        assert dispatch_task()["sent"]["jobreaper_jobs"] == 2
        assert sql("SELECT tries FROM jobreaper_refused_rows") == [{"tries": 1}]
    assert sorted(job_ids(queue.take())) == sorted(good)
    assert jobs.row(bad)["dispatched_at"] is None


def test_jobs_that_were_enqueued_together_are_sent_around_it(
    queue: Queue, jobs: Rows, sql: Sql
) -> None:
    bad = jobs.plant(payload=BAD, priority=9)
    good = [jobs.plant() for _ in range(3)]
    with refusing(sql, "jobreaper_jobs", "check"):
        send_enqueued(Job, pks=good)
    assert sorted(job_ids(queue.take())) == sorted(map(str, good))
    assert jobs.row(bad)["dispatched_at"] is None


def test_a_table_that_nobody_can_write_is_no_rows_fault(queue: Queue, jobs: Rows, sql: Sql) -> None:
    jobs.plant()
    sql("ALTER TABLE jobreaper_jobs RENAME COLUMN next_earliest_run_at TO away")
    try:
        [error] = [each for each in dispatch().errors if "jobreaper_jobs" in each]
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO next_earliest_run_at")
    assert "next_earliest_run_at" in error
    assert not sql("SELECT 1 FROM jobreaper_refused_rows")


def test_a_job_that_is_sent_alone_is_remembered(queue: Queue, jobs: Rows, sql: Sql) -> None:
    bad = jobs.plant(payload=BAD)
    with refusing(sql, "jobreaper_jobs", "trigger"):
        with pytest.raises(Exception, match="not this one"):
            dispatch_job(Job, bad)
        assert sql("SELECT key FROM jobreaper_refused_rows") == [{"key": str(bad)}]
        assert dispatch_job(Job, bad) is False


def test_a_job_that_cannot_be_unmarked_keeps_no_other_from_being_sent_again(
    jobs: Rows, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    bad = jobs.plant(payload=BAD)
    good = [jobs.plant() for _ in range(5)]
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON jobreaper_jobs FOR EACH ROW"
        " WHEN (OLD.payload ? 'bad' AND NEW.dispatched_at IS NULL) EXECUTE FUNCTION refuse()"
    )
    try:
        # Nothing listens there.
        with celery_app("redis://127.0.0.1:1/0") as app:
            leased(app, name="tests.any")(nothing)
            [error] = dispatch().errors
    finally:
        sql("DROP FUNCTION refuse CASCADE")
    assert "not this one" not in error
    assert [jobs.row(key)["dispatched_at"] for key in good] == [None] * 5
    assert jobs.row(bad)["dispatched_at"] is not None
    assert f"jobreaper_jobs {bad} is sent again only in" in caplog.text
