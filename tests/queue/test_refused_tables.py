"""A worker whose table refuses everything, or cannot be written at the moment."""

import pytest

from jobreaper import enqueue, job_handler
from jobreaper.db import retry
from jobreaper.states import Status
from tests.limits import Limit, limit
from tests.queue.working import idle, working
from tests.rows import Rows, Sql
from tests.waiting import until

__all__ = ["limit"]

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def simple() -> None:
    job_handler("simple")(idle)


def test_it_says_which_table_and_why_and_not_all_the_time(
    jobs: Rows, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    job = enqueue("simple")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'closed for stocktaking'; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON jobreaper_jobs"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
    )
    try:
        with working(poll_sec=0.01) as worker:
            until(lambda: "closed for stocktaking" in caplog.text)
            looked = worker._lanes[0].intake.next_look
            until(lambda: worker._lanes[0].intake.next_look > looked + 0.05)
            said = [line for line in caplog.messages if "closed for stocktaking" in line]
            sql("DROP FUNCTION refuse CASCADE")
            until(lambda: jobs.row(job.pk)["status"] == Status.SUCCESS)
    finally:
        sql("DROP FUNCTION IF EXISTS refuse CASCADE")
    [line] = said
    assert "jobreaper_jobs" in line
    assert "trigger" in line


def test_it_does_not_say_so_of_a_database_that_is_only_read_for_now(
    jobs: Rows, limit: Limit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRIES", 0)
    enqueue("simple")
    limit("default_transaction_read_only", "on")
    with working(poll_sec=0.01):
        until(lambda: "cannot do it now" in caplog.text)
    assert "read-only transaction" in caplog.text
    assert "trigger" not in caplog.text
