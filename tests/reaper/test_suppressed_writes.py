"""Triggers that return NULL: PostgreSQL then writes nothing, and raises no error. What was not
written did not happen, and what was written did, whether it could be recorded or not.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError
from pytest_django import Settings

from jobreaper import cancel, claim, fail, reap, requeue, run_now
from jobreaper.reaper.dead_workers import give_back
from jobreaper.tables import table_of
from project.media.models import Job
from tests.refusals import refusing
from tests.rows import Rows, Sql, ago

SAID = "a trigger or a rule suppressed the write of 1 row"


@pytest.fixture(autouse=True)
def unheld(settings: Settings) -> None:
    settings.JOBREAPER = {"RECOVERY_GRACE_SEC": 0}


def in_python(sql: Sql) -> list[str]:
    return [str(key) for key in reap([Job]).requeued_ids.get("jobs", [])]


def in_sql(sql: Sql) -> list[str]:
    return [row["job_id"] for row in sql("SELECT * FROM jobs_reap(2)")]


@pytest.mark.parametrize("reap_some", [in_python, in_sql])
def test_a_pass_goes_around_rows_whose_write_is_suppressed(
    reap_some: Callable[[Sql], list[str]], jobs: Rows, sql: Sql
) -> None:
    bad = [jobs.plant_expired(payload='{"bad": true}', lease_expires_at=ago(99)) for _ in range(3)]
    good = jobs.plant_expired()
    before = {key: jobs.row(key) for key in bad}
    with refusing(sql, "jobs", "suppressing trigger"):
        reaped = reap_some(sql) + reap_some(sql) + reap_some(sql)
        remembered = sql("SELECT key, error FROM jobreaper_refused_rows ORDER BY key")
    assert reaped == [str(good)]
    assert {row["key"] for row in remembered} == set(map(str, bad))
    assert all(row["error"].startswith(SAID) for row in remembered)
    assert {key: jobs.row(key) for key in bad} == before
    assert [jobs.events(key) for key in bad] == [[]] * 3


def test_the_jobs_of_a_dead_worker_are_taken_around_it(jobs: Rows, sql: Sql) -> None:
    keys = [jobs.plant_expired(payload=said, locked_by="w") for said in ('{"bad": true}', "{}")]
    with refusing(sql, "jobs", "suppressing trigger"):
        assert [job.pk for job in give_back(table_of(Job), "w", "it was killed")] == keys[1:]
        [row] = sql("SELECT key FROM jobreaper_refused_rows")
    assert row["key"] == str(keys[0])


BY_HAND: dict[str, Callable[..., list[Any]]] = {
    "requeue": requeue,
    "run_now": run_now,
    "fail": fail,
    "cancel": cancel,
}


@pytest.mark.parametrize("verb", BY_HAND)
def test_an_operator_is_told_which_jobs_a_verb_did_not_change(
    verb: str, jobs: Rows, sql: Sql
) -> None:
    given = (
        {"status": "queued", "next_earliest_run_at": "2999-01-01"}
        if verb == "run_now"
        else {"status": "processing", "locked_by": "w", "lease_expires_at": "2999-01-01"}
    )
    bad, good = (jobs.plant(payload=said, **given) for said in ('{"bad": true}', "{}"))
    before = jobs.row(bad)
    with refusing(sql, "jobs", "suppressing trigger"):
        assert BY_HAND[verb](Job, [bad, good], by="ann") == [good]
        with pytest.raises(DatabaseError, match=SAID):
            BY_HAND[verb](Job, [bad], by="ann")
    assert jobs.row(bad) == before
    assert jobs.events(bad) == []


@pytest.mark.parametrize(
    "call",
    ["heartbeat(%s, 'w', 1)", "finish(%s, 'w', 1)", "release(%s, 'w')", "fail(%s, 'w', 1, '', '')"],
)
def test_a_function_says_so_and_not_that_the_lease_is_lost(
    call: str, as_before: None, jobs: Rows, sql: Sql
) -> None:
    lease = claim(Job, jobs.plant(payload='{"bad": true}'), worker="w")
    assert lease is not None
    with (
        refusing(sql, "jobs", "suppressing trigger"),
        pytest.raises(psycopg.Error, match=SAID),
    ):
        sql(f"SELECT jobs_{call}", lease.pk)
    assert sql(f"SELECT jobs_{call} AS is_held", lease.pk)[0]["is_held"] is True


@pytest.fixture
def no_events(sql: Sql) -> Iterator[None]:
    """A filter of a table of events: it takes none."""
    sql(
        "CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NULL; END $$"
    )
    sql(
        "CREATE TRIGGER keep_out BEFORE INSERT ON job_events FOR EACH ROW"
        " EXECUTE FUNCTION keep_out()"
    )
    yield
    sql("DROP FUNCTION keep_out CASCADE")


@pytest.mark.parametrize("verb", ["finish", "fail", "release"])
def test_a_job_whose_event_is_kept_out_has_ended_all_the_same(
    verb: str, no_events: None, jobs: Rows
) -> None:
    lease = claim(Job, jobs.plant())
    assert lease is not None
    done: dict[str, Callable[[], object]] = {
        "finish": lease.finish,
        "fail": lambda: lease.fail("E1"),
        "release": lease.release,
    }
    done[verb]()
    assert lease.closed
    expected = "success" if verb == "finish" else "queued"
    assert (jobs.row(lease.pk)["status"], jobs.events(lease.pk)) == (expected, [])


def test_jobs_whose_events_are_kept_out_are_reaped_and_requeued(
    no_events: None, jobs: Rows, sql: Sql
) -> None:
    lost, failed = jobs.plant_expired(), jobs.plant(status="failed")
    assert in_python(sql) == [str(lost)]
    assert requeue(Job, [failed], by="ann") == [failed]
