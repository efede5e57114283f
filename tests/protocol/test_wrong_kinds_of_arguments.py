"""Arguments of a kind that a stranger takes for right."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobreaper import cancel, claim, claim_next, enqueue, fail, reap, requeue, run_now
from project.media.models import Job
from tests.rows import Rows, Sql

CALLS: dict[str, Callable[[Any], object]] = {
    "stages": lambda text: claim_next(Job, stages=text),
    "queues": lambda text: claim_next(Job, queues=text),
    "tables": lambda text: reap(text),
    "requeue": lambda text: requeue(Job, text, by="ann"),
    "run_now": lambda text: run_now(Job, text, by="ann"),
    "fail": lambda text: fail(Job, text, by="ann"),
    "cancel": lambda text: cancel(Job, text, by="ann"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("text", ["12", b"12"])
def test_a_text_is_not_taken_for_a_list_of_its_characters(
    call: str, text: str | bytes, jobs: Rows
) -> None:
    keys = [jobs.plant(id=n) for n in (1, 2)]
    with pytest.raises(TypeError, match=r"must be a list or another iterable, not the text b?'12'"):
        CALLS[call](text)
    assert {jobs.row(key)["lease_epoch"] for key in keys} == {0}


@pytest.mark.parametrize(
    ("delay", "sec"),
    [(timedelta(hours=1), 3600), ("30", 30), ("soon", 0), (None, None), ([], 0), (10**400, 0)],
)
def test_a_delay_of_any_kind_ends_the_attempt(delay: Any, sec: float | None, jobs: Rows) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    assert lease.fail("E1", delay_sec=delay) is True
    row = jobs.row(lease.pk)
    assert row["status"] == "queued"
    if sec is not None:
        assert abs((row["next_earliest_run_at"] - jobs.now()).total_seconds() - sec) < 30


def test_a_suppressed_insert_of_a_job_is_named(sql: Sql) -> None:
    sql(
        "CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NULL; END $$"
    )
    sql(
        "CREATE TRIGGER keep_out BEFORE INSERT ON jobreaper_jobs FOR EACH ROW"
        " EXECUTE FUNCTION keep_out()"
    )
    try:
        with pytest.raises(RuntimeError, match="a trigger or a rule suppresses the INSERT"):
            enqueue("mail")
    finally:
        sql("DROP FUNCTION keep_out CASCADE")
