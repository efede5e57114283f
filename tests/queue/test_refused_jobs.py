"""Jobs of the ready-made table whose end, or whose claim, the database refuses to write."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import DatabaseError, connections

from jobreaper import claim, claim_next, enqueue, enqueue_many, job_handler, reap
from jobreaper.models import Job
from jobreaper.protocol import heartbeat, lines
from jobreaper.queue.runs import run_due
from jobreaper.queue.worker import Worker
from jobreaper.states import Status
from jobreaper.tables import table_of
from tests.refusals import OF_COUNTERS, WAYS, refusing
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def simple() -> None:
    job_handler("simple")(lambda job, lease: None)


@pytest.fixture
def ends_refused(sql: Sql) -> Iterator[None]:
    """No end of a job can be written whose payload is bad."""
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON jobreaper_jobs FOR EACH ROW"
        " WHEN (OLD.payload ? 'bad' AND NEW.status <> 'processing') EXECUTE FUNCTION refuse()"
    )
    yield
    sql("DROP FUNCTION refuse CASCADE")


@pytest.mark.usefixtures("ends_refused")
def test_a_worker_lets_go_what_cannot_be_ended_and_goes_on(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(poll_sec=0.05)

    def run() -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        bad = enqueue("simple", {"bad": True})
        enqueue_many([{}] * 20, type="simple")
        until(lambda: worker.tally.succeeded == 20 and worker.tally.refused == 1)
        enqueue_many([{}] * 3, type="simple")
        until(lambda: worker.tally.succeeded == 23)
        assert not heartbeat.heart._leases
    finally:
        worker.stop()
        thread.join(20)
    assert worker.left_behind == 1
    assert jobs.row(bad.pk)["status"] == Status.PROCESSING
    said = [line for line in caplog.messages if "not this one" in line]
    assert [line.split()[0] for line in said] == ["ending_refused"]
    assert "the database did not answer" not in caplog.text


@pytest.mark.usefixtures("ends_refused")
@pytest.mark.parametrize("fails", [False, True])
def test_a_tick_goes_on_after_a_job_that_cannot_be_ended(fails: bool, jobs: Rows) -> None:
    def work(job: Any, lease: Any) -> None:
        if fails:
            raise ZeroDivisionError

    job_handler("work")(work)
    bad = enqueue("work", {"bad": True}, priority=1)
    enqueue("simple")
    tally = run_due(10, 20)
    assert (tally.claimed, tally.refused, tally.succeeded) == (2, 1, 1)
    assert jobs.row(bad.pk)["status"] == Status.PROCESSING
    assert Job.objects.get(type="simple").status == Status.SUCCESS


@pytest.fixture
def claims_refused(sql: Sql) -> Iterator[Callable[[str], None]]:
    """Let no row be written whose payload is bad, in one of the ways."""
    with ExitStack() as until_the_end:
        yield lambda way: until_the_end.enter_context(refusing(sql, "jobreaper_jobs", way))


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("way", WAYS | OF_COUNTERS)
def test_a_row_that_no_claim_can_write_keeps_nobody_from_theirs(
    way: str,
    limited: bool,
    jobs: Rows,
    sql: Sql,
    claims_refused: Callable[[str], None],
    settings: Any,
) -> None:
    if limited:
        settings.JOBREAPER = {"STAGES": {"simple": {"max_running": 100}}}
    bad = enqueue("simple", {"bad": True}, priority=9)
    good = [enqueue("simple").pk for _ in range(5)]
    claims_refused(way)
    [first] = claim_next(Job)
    assert first.pk in good
    [remembered] = sql("SELECT * FROM jobreaper_refused_rows")
    assert (remembered["verb"], remembered["key"]) == ("claim", str(bad.pk))
    first.finish()
    assert Worker().run(once=True).succeeded == 4
    assert jobs.row(bad.pk)["status"] == Status.QUEUED
    # Left out, it costs no further try.
    assert sql("SELECT tries FROM jobreaper_refused_rows") == [{"tries": 1}]


def test_behind_a_long_line_it_keeps_nobody_from_theirs_either(
    jobs: Rows, sql: Sql, claims_refused: Callable[[str], None]
) -> None:
    bad = enqueue("simple", {"bad": True}, priority=9)
    good = [enqueue("simple").pk for _ in range(5)]
    claims_refused("check")
    lines.note_long(table_of(Job))
    assert [lease.pk for lease in claim_next(Job, 9)] == good
    assert sql("SELECT key FROM jobreaper_refused_rows") == [{"key": str(bad.pk)}]


@pytest.mark.slow
def test_many_rows_that_cannot_be_claimed_do_not_stop_a_worker(
    jobs: Rows, sql: Sql, claims_refused: Callable[[str], None]
) -> None:
    enqueue_many([{"type": "simple", "payload": {"bad": True}, "priority": 9}] * 300)
    enqueue_many([{}] * 20, type="simple")
    claims_refused("trigger")
    done = 0
    for _ in range(20):
        done += Worker().run(once=True).succeeded
        if done == 20:
            break
    assert done == 20


def test_a_job_that_is_asked_for_and_cannot_be_written_raises_that_and_is_remembered(
    jobs: Rows, sql: Sql, claims_refused: Callable[[str], None]
) -> None:
    bad = enqueue("simple", {"bad": True})
    claims_refused("trigger")
    with pytest.raises(DatabaseError, match="not this one"):
        claim(Job, bad.pk)
    assert claim(Job, bad.pk) is None
    sql("UPDATE jobreaper_refused_rows SET next_try_at = now()")
    sql("DROP TRIGGER refuse ON jobreaper_jobs")
    lease = claim(Job, bad.pk)
    assert lease is not None
    lease.finish()


@pytest.mark.parametrize(
    "end", ["UPDATE jobreaper_jobs SET status = 'cancelled'", "DELETE FROM jobreaper_jobs"]
)
def test_a_pass_forgets_a_row_that_is_not_queued_any_more(
    end: str, jobs: Rows, sql: Sql, claims_refused: Callable[[str], None]
) -> None:
    enqueue("simple", {"bad": True})
    claims_refused("trigger")
    assert claim_next(Job) == []
    reap([Job])
    assert sql("SELECT 1 FROM jobreaper_refused_rows")
    sql("DROP TRIGGER refuse ON jobreaper_jobs")
    sql(end)
    reap([Job])
    assert not sql("SELECT 1 FROM jobreaper_refused_rows")


def test_a_table_that_nobody_can_write_is_no_rows_fault(jobs: Rows, sql: Sql) -> None:
    enqueue("simple")
    sql("ALTER TABLE jobreaper_jobs RENAME COLUMN deadline_at TO away")
    try:
        with pytest.raises(DatabaseError, match="deadline_at"):
            claim_next(Job)
    finally:
        sql("ALTER TABLE jobreaper_jobs RENAME COLUMN away TO deadline_at")
    assert not sql("SELECT 1 FROM jobreaper_refused_rows")
