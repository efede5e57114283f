"""Endings that the database refuses for one job, and what becomes of the others in its group."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from jobreaper import Lease, LeaseLost, claim, reap, signals
from jobreaper.db import retry
from jobreaper.protocol import heartbeat
from jobreaper.protocol.batch import (
    Ending,
    Run,
    claim_group,
    fail_group,
    finish_group,
    release_group,
)
from jobreaper.protocol.phases import Phase
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql, ago

GROUPS: dict[str, Callable[[list[Run]], Ending]] = {
    "finish": finish_group,
    "fail": fail_group,
    "release": release_group,
}
VERBS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1"),
    "release": lambda lease: lease.release(),
}

# How a database may refuse to write a row whose payload says so; each leaves claims alone.
REFUSALS = {
    "a trigger that raises": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW
            WHEN (OLD.payload ? 'bad' AND OLD.status = 'processing' AND NEW.status <> 'processing')
            EXECUTE FUNCTION refuse()""",
    "a constraint trigger at the commit": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (OLD.payload ? 'bad' AND NEW.status <> 'processing')
            EXECUTE FUNCTION refuse()""",
    "a check that old rows need not hold": """
        ALTER TABLE jobs ADD CONSTRAINT refused
            CHECK (NOT payload ? 'bad' OR status = 'processing') NOT VALID""",
    "a trigger that divides by zero": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.reap_count := 1 / 0; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW
            WHEN (OLD.payload ? 'bad' AND NEW.status <> 'processing') EXECUTE FUNCTION refuse()""",
    "a trigger that suppresses the write": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW
            WHEN (OLD.payload ? 'bad' AND NEW.status <> 'processing') EXECUTE FUNCTION refuse()""",
    "an event that cannot be written": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON job_events FOR EACH ROW
            WHEN (NEW.data -> 'details' ->> 'stage' = 'bad') EXECUTE FUNCTION refuse()""",
}


@pytest.fixture(params=REFUSALS)
def refusal(request: pytest.FixtureRequest, sql: Sql) -> Iterator[str]:
    # Rows that a check forbids may be there before it.
    yield REFUSALS[request.param]
    sql("ALTER TABLE jobs DROP CONSTRAINT IF EXISTS refused")
    sql("DROP FUNCTION IF EXISTS refuse CASCADE")


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """The endings that were refused, as the signal tells of them."""
    found: list[dict[str, Any]] = []

    def note(**arguments: Any) -> None:
        found.append(arguments)

    signals.ending_refused.connect(note)
    yield found
    signals.ending_refused.disconnect(note)
    heartbeat.heart.stop()


def claimed(jobs: Rows, refusal: str, good: int) -> tuple[list[Run], Run]:
    for _ in range(good):
        jobs.plant()
    bad = jobs.plant(payload='{"bad": true}', stage="bad")
    runs = claim_group(table_of(Job), good + 1)
    jobs.sql(refusal)
    for run in runs:
        run.error = ZeroDivisionError()
    [bad_run] = [run for run in runs if run.lease.pk == bad]
    return runs, bad_run


@pytest.mark.parametrize("verb", GROUPS)
def test_one_job_whose_end_is_refused_does_not_keep_the_others_from_theirs(
    verb: str, refusal: str, jobs: Rows, told: list[dict[str, Any]]
) -> None:
    runs, bad = claimed(jobs, refusal, good=6)
    before = jobs.row(bad.lease.pk)
    ending = GROUPS[verb](runs)
    assert ending.refused == [bad]
    assert [run for run in runs if run is not bad] == ending.ended
    assert (ending.lost, ending.locked) == ([], [])
    assert {run.holding.phase for run in ending.ended} == {Phase.ENDED}
    assert jobs.row(bad.lease.pk) == before
    assert jobs.events(bad.lease.pk) == []
    [(lease, said)] = [(one["lease"], one["verb"]) for one in told]
    assert (lease, said) == (bad.lease, verb)


def test_a_refused_job_is_beaten_no_more_and_the_reaper_decides(
    jobs: Rows, told: list[dict[str, Any]], sql: Sql
) -> None:
    runs, bad = claimed(jobs, REFUSALS["a trigger that raises"], good=1)
    finish_group(runs)
    assert bad.holding not in heartbeat.heart._leases
    assert bad.holding.phase is Phase.HELD
    jobs.set(bad.lease.pk, lease_expires_at=ago(1))
    sql("DROP FUNCTION refuse CASCADE")
    assert reap([Job]).requeued_ids == {"jobs": [bad.lease.pk]}


def test_a_group_of_one_is_refused_like_any(jobs: Rows, told: list[dict[str, Any]]) -> None:
    runs, bad = claimed(jobs, REFUSALS["a trigger that raises"], good=0)
    assert finish_group(runs).refused == [bad]
    jobs.sql("DROP FUNCTION refuse CASCADE")


@pytest.mark.parametrize("verb", VERBS)
def test_a_single_lease_whose_end_is_refused_raises_that_and_is_still_held(
    verb: str, refusal: str, jobs: Rows
) -> None:
    lease = claim(Job, jobs.plant(payload='{"bad": true}', stage="bad"))
    assert lease is not None
    jobs.sql(refusal)
    with pytest.raises(DatabaseError):
        VERBS[verb](lease)
    assert not lease.closed
    lease.check()
    lease.heartbeat()


def test_an_end_that_the_commit_of_its_transaction_refuses_is_undone(jobs: Rows, sql: Sql) -> None:
    lease = claim(Job, jobs.plant(payload='{"bad": true}'))
    assert lease is not None
    sql(REFUSALS["a constraint trigger at the commit"])
    try:
        with pytest.raises(DatabaseError), transaction.atomic():
            lease.finish()
        assert not lease.closed
        lease.check()
    finally:
        sql("DROP FUNCTION refuse CASCADE")


def test_a_table_that_can_be_written_by_nobody_refuses_the_group_as_a_whole(
    jobs: Rows, told: list[dict[str, Any]], sql: Sql
) -> None:
    runs, _ = claimed(jobs, "ALTER TABLE job_events RENAME TO elsewhere", good=3)
    try:
        with pytest.raises(DatabaseError):
            finish_group(runs)
    finally:
        sql("ALTER TABLE elsewhere RENAME TO job_events")
    assert told == []
    assert {run.holding.phase for run in runs} == {Phase.HELD}
    assert finish_group(runs).ended == runs


def test_in_a_transaction_of_the_callers_the_error_is_the_callers(
    jobs: Rows, told: list[dict[str, Any]], sql: Sql
) -> None:
    runs, _ = claimed(jobs, REFUSALS["a trigger that raises"], good=2)
    try:
        with pytest.raises(DatabaseError), transaction.atomic():
            finish_group(runs)
    finally:
        sql("DROP FUNCTION refuse CASCADE")
    assert told == []
    assert finish_group(runs).ended == runs


def test_a_row_that_only_takes_too_long_is_tried_again_and_not_given_up(
    jobs: Rows, told: list[dict[str, Any]], sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_RETRY_SEC", 0.001)
    runs, bad = claimed(
        jobs,
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'later' USING ERRCODE = '55P03'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW
               WHEN (OLD.payload ? 'bad') EXECUTE FUNCTION refuse()""",
        good=3,
    )
    try:
        ending = finish_group(runs)
    finally:
        sql("DROP FUNCTION refuse CASCADE")
    assert (ending.locked, len(ending.ended), told) == ([bad], 3, [])
    assert finish_group([bad]).ended == [bad]


@pytest.fixture
def no_event_of_bad(sql: Sql) -> Iterator[None]:
    sql(REFUSALS["an event that cannot be written"])
    yield
    sql("DROP FUNCTION refuse CASCADE")


@pytest.mark.parametrize("verb", GROUPS)
def test_a_lost_lease_whose_event_is_refused_is_lost_and_the_others_have_ended(
    verb: str, jobs: Rows, told: list[dict[str, Any]], no_event_of_bad: None
) -> None:
    bad_key = jobs.plant(stage="bad")
    for _ in range(4):
        jobs.plant()
    runs = claim_group(table_of(Job), 5)
    jobs.set(bad_key, lease_epoch=9)
    for run in runs:
        run.error = ZeroDivisionError()
    ending = GROUPS[verb](runs)
    [bad] = [run for run in runs if run.lease.pk == bad_key]
    assert (ending.lost, ending.locked, ending.refused) == ([bad], [], [])
    assert len(ending.ended) == 4
    assert [len(jobs.events(run.lease.pk)) for run in ending.ended] == [1] * 4


@pytest.mark.parametrize("verb", VERBS)
def test_a_single_lost_lease_is_told_so_whether_that_can_be_recorded_or_not(
    verb: str, jobs: Rows, no_event_of_bad: None, caplog: pytest.LogCaptureFixture
) -> None:
    lease = claim(Job, jobs.plant(stage="bad"))
    assert lease is not None
    jobs.set(lease.pk, lease_epoch=9)
    with pytest.raises(LeaseLost):
        VERBS[verb](lease)
    assert "cannot record a rejected write: not this one" in caplog.text
