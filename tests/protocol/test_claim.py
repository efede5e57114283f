"""Claim: which job, in which order, and exactly what is written."""

import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from pytest_django import Settings

from jobreaper import Lease, UnknownTable, claim, claim_next, worker_id
from jobreaper.models import Job as OwnJob
from jobreaper.models import ReaperPass
from jobreaper.protocol import claim as claim_module
from jobreaper.protocol.holding import holding_of
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago, ahead

UNTOUCHED = (
    "stage",
    "max_attempts",
    "reap_count",
    "next_earliest_run_at",
    "expected_duration_ms",
    "finished_at",
    "dispatched_at",
    "fail_code",
    "fail_reason",
    "payload",
    "created_at",
    "updated_at",
)


def keys(leases: list[Lease]) -> list[Any]:
    return [lease.pk for lease in leases]


def test_a_claim_writes_the_lease_and_nothing_else(jobs: Rows) -> None:
    key = jobs.plant(
        stage="clip",
        attempt_count=1,
        lease_epoch=4,
        reap_count=1,
        fail_code="E1",
        fail_reason="the attempt before",
        next_earliest_run_at=ago(5),
        dispatched_at=ago(4),
        last_heartbeat_at=ago(1000),
        payload="{}",
    )
    before = jobs.row(key)
    claim(Job, key, worker="w1")
    row = jobs.row(key)
    now, beat = row["claimed_at"], row["last_heartbeat_at"]
    assert timedelta() <= jobs.now() - now < timedelta(seconds=60)
    assert timedelta() < now - beat < timedelta(seconds=0.1)
    assert row == {
        **before,
        "status": "processing",
        "locked_by": "w1",
        "claimed_at": now,
        "last_heartbeat_at": beat,
        "lease_expires_at": now + timedelta(seconds=300),
        "deadline_at": None,
        "attempt_count": 2,
        "lease_epoch": 5,
    }
    assert {name: row[name] for name in UNTOUCHED} == {name: before[name] for name in UNTOUCHED}


def test_a_claim_leaves_no_event(jobs: Rows) -> None:
    key = jobs.plant()
    claim(Job, key)
    assert jobs.events(key) == []


def test_the_lease_knows_what_the_row_says(jobs: Rows) -> None:
    key = jobs.plant(stage="asr")
    lease = claim(Job, key, worker="w1")
    assert lease is not None
    row = jobs.row(key)
    assert lease.pk == key
    assert lease.epoch == row["lease_epoch"] == 1
    assert lease.worker == "w1"
    assert lease.expires_at == row["lease_expires_at"]
    assert not lease.lost
    assert not lease.closed
    assert (lease.job.stage, lease.job.status, lease.job.attempt_count) == ("asr", "processing", 1)
    assert repr(lease) == f"<Lease jobs {key} epoch 1>"
    lease.check()


def test_the_worker_is_this_process_unless_named(jobs: Rows) -> None:
    key = jobs.plant()
    claim(Job, key)
    assert jobs.row(key)["locked_by"] == worker_id()


def test_a_workers_name_is_stored_whatever_it_is(jobs: Rows) -> None:
    key = jobs.plant()
    claim(Job, key, worker="w\x00\ud800")
    assert jobs.row(key)["locked_by"] == "w\\x00\\ud800"


def test_a_stage_with_a_runtime_gets_a_deadline(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_runtime": 100}}}
    key = jobs.plant(stage="asr")
    lease = claim(Job, key)
    row = jobs.row(key)
    assert row["deadline_at"] == row["claimed_at"] + timedelta(seconds=100)
    # No lease outlives its deadline.
    assert row["lease_expires_at"] == row["deadline_at"]
    assert lease is not None
    assert holding_of(lease).length_sec == pytest.approx(100)


def test_a_deadline_of_an_earlier_attempt_is_forgotten(jobs: Rows) -> None:
    key = jobs.plant(deadline_at=ago(5))
    lease = claim(Job, key)
    assert lease is not None
    assert jobs.row(key)["deadline_at"] is None
    assert not lease.lost


@pytest.mark.parametrize("status", ["processing", "success", "failed", "cancelled", "paused"])
def test_only_a_queued_job_is_claimed(jobs: Rows, status: str) -> None:
    key = jobs.plant(status=status)
    before = jobs.row(key)
    assert claim(Job, key) is None
    assert claim_next(Job, 9) == []
    assert jobs.row(key) == before


def test_a_job_is_not_claimed_before_its_time(jobs: Rows) -> None:
    key = jobs.plant(next_earliest_run_at=ahead(5))
    assert claim(Job, key) is None
    assert claim_next(Job) == []


@pytest.mark.parametrize("next_earliest_run_at", [ago(0), ago(1000), None])
def test_a_job_is_claimed_when_its_time_has_come(
    jobs: Rows, next_earliest_run_at: timedelta | None
) -> None:
    key = jobs.plant(next_earliest_run_at=next_earliest_run_at)
    assert claim(Job, key)


def test_a_row_as_an_old_insert_makes_it_can_be_claimed(sql: Sql) -> None:
    [row] = sql("INSERT INTO jobs (stage, payload) VALUES ('clip', '{}') RETURNING id")
    assert claim(Job, row["id"])


def test_a_job_that_does_not_exist_is_not_claimed(transactional_db: None) -> None:
    assert claim(Job, 987_654_321) is None
    assert claim(OwnJob, uuid.uuid4()) is None


@pytest.mark.parametrize(
    ("model", "key", "error"),
    [
        (Job, "seven", ValueError),
        (Job, None, ValueError),
        (Job, 2**63, ValidationError),
        (OwnJob, "seven", ValidationError),
        (OwnJob, None, ValueError),
    ],
)
def test_what_cannot_be_a_key_is_refused(
    jobs: Rows, model: Any, key: object, error: type[Exception]
) -> None:
    waiting = jobs.plant()
    with pytest.raises(error):
        claim(model, key)
    assert jobs.row(waiting)["status"] == "queued"


def test_a_key_may_be_text(jobs: Rows) -> None:
    key = jobs.plant()
    lease = claim(Job, str(key))
    assert lease is not None
    assert lease.pk == key


def test_a_model_that_is_no_job_table_is_refused(transactional_db: None) -> None:
    with pytest.raises(UnknownTable, match=r"asr_jobs, .*jobs"):
        claim(ReaperPass, 1)


def test_a_locked_job_is_not_waited_for(
    jobs: Rows, second_connection: psycopg.Connection[Any]
) -> None:
    locked, free = jobs.plant(), jobs.plant()
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [locked])
    assert claim(Job, locked) is None
    assert keys(claim_next(Job, 2)) == [free]


@pytest.fixture(params=["on", "off"])
def index(sql: Sql, request: pytest.FixtureRequest) -> Iterator[None]:
    """An index may bring the order along, or not be used at all."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET enable_indexscan = {request.param}")
        cursor.execute(f"SET enable_bitmapscan = {request.param}")
    yield
    connection.close()


@pytest.mark.usefixtures("index")
def test_the_next_jobs_are_those_that_have_waited_longest_then_the_oldest_rows(
    jobs: Rows,
) -> None:
    untimed = [jobs.plant() for _ in range(2)]
    recent = jobs.plant(next_earliest_run_at=ago(1))
    waiting = jobs.plant(next_earliest_run_at=ago(100))
    jobs.plant(next_earliest_run_at=ahead(100))
    order = [waiting, recent, *untimed]
    assert [keys(claim_next(Job))[0] for _ in order] == order
    assert claim_next(Job) == []


@pytest.mark.usefixtures("index")
def test_jobs_due_at_the_same_time_go_by_their_ids(jobs: Rows, sql: Sql) -> None:
    planted = [jobs.plant() for _ in range(4)]
    sql("UPDATE jobs SET next_earliest_run_at = now() - interval '1 second'")
    assert [keys(claim_next(Job))[0] for _ in planted] == planted


@pytest.mark.usefixtures("index")
def test_several_jobs_are_claimed_at_once_and_come_in_order(jobs: Rows) -> None:
    untimed = [jobs.plant() for _ in range(3)]
    waited = {sec: jobs.plant(next_earliest_run_at=ago(sec)) for sec in (30, 10, 50, 20, 40)}
    order = [waited[sec] for sec in (50, 40, 30, 20, 10)] + untimed
    assert keys(claim_next(Job, 6)) == order[:6]
    assert keys(claim_next(Job, 6)) == order[6:]


def test_a_claim_of_several_is_one_statement(jobs: Rows, django_assert_num_queries: Any) -> None:
    # A session's first claim also says whose session it is.
    claim(Job, jobs.plant())
    for _ in range(5):
        jobs.plant()
    with django_assert_num_queries(1):
        assert len(claim_next(Job, 5)) == 5


def test_only_the_wanted_stages_are_claimed(jobs: Rows) -> None:
    jobs.plant(stage="clip", next_earliest_run_at=ago(5))
    jobs.plant()
    asr, burnin = jobs.plant(stage="asr"), jobs.plant(stage="burnin")
    assert sorted(keys(claim_next(Job, 9, stages=["asr", "burnin"]))) == [asr, burnin]
    assert claim_next(Job, 9, stages=[]) == []


def test_only_the_models_own_table_is_claimed_from(jobs: Rows, asr_jobs: Rows) -> None:
    jobs.plant()
    asr = asr_jobs.plant()
    assert keys(claim_next(AsrJob, 9)) == [asr]


@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_job_is_refused(transactional_db: None, n: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        claim_next(Job, n)


def test_a_claim_that_is_rolled_back_never_was(jobs: Rows) -> None:
    key = jobs.plant()
    before = jobs.row(key)
    with transaction.atomic():
        assert claim(Job, key)
        transaction.set_rollback(True)
    assert jobs.row(key) == before
    assert claim(Job, key)


def test_a_claim_survives_a_session_that_was_ended(jobs: Rows, sql: Sql) -> None:
    key = jobs.plant()
    end_own_session(sql)
    assert claim(Job, key)
    assert jobs.row(key)["status"] == "processing"


def test_a_claim_survives_a_statement_that_an_exception_broke_off_before(jobs: Rows) -> None:
    """Some other task's soft time limit, on a connection that is kept from task to task."""
    key = jobs.plant()
    connection.ensure_connection()
    connection.connection.pgconn.send_query(b"SELECT 1")
    assert claim(Job, key) is not None
    assert jobs.row(key)["attempt_count"] == 1


def end_own_session(sql: Sql) -> None:
    """End this thread's session as a restart of the server would."""
    connection.ensure_connection()
    sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)


LIMITS: list[dict[str, Any]] = [{}, {"STAGES": {"clip": {"max_running": 9}}}]


@pytest.mark.parametrize("options", LIMITS, ids=["unlimited", "limited"])
def test_a_claim_whose_answer_was_lost_is_taken_over(
    jobs: Rows, sql: Sql, settings: Settings, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.JOBREAPER = options
    planted = [jobs.plant(next_earliest_run_at=ago(60 - n)) for n in range(6)]
    lose_the_answer(sql, monkeypatch)
    leases = claim_next(Job, 4)
    assert keys(leases) == planted[:4]
    assert [jobs.row(key)["attempt_count"] for key in planted] == [1, 1, 1, 1, 0, 0]
    for lease in leases:
        lease.heartbeat()
        lease.finish()


def test_a_claim_of_one_job_whose_answer_was_lost_is_taken_over(
    jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = jobs.plant()
    lose_the_answer(sql, monkeypatch)
    lease = claim(Job, key)
    assert lease is not None
    lease.finish()


def test_what_this_worker_has_in_hand_is_not_taken_over(
    jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed a moment ago, by other threads of this process, and not beaten yet."""
    in_hand = [jobs.plant() for _ in range(3)]
    assert len(claim_next(Job, 3)) == 3
    lose_the_answer(sql, monkeypatch)
    assert claim(Job, in_hand[0]) is None
    free = jobs.plant()
    assert keys(claim_next(Job, 9)) == [free]


def test_a_claim_whose_answer_was_lost_and_which_took_nothing_is_sent_again(
    jobs: Rows, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = [jobs.plant() for _ in range(2)]
    lose_the_answer(sql, monkeypatch, carried_out=False)
    assert keys(claim_next(Job, 2)) == planted
    assert [row["attempt_count"] for row in jobs.all().values()] == [1, 1]


def test_processes_that_share_a_name_do_not_mark_their_claims_alike() -> None:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, str(next(claim_module._claims)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reading, 100)) != next(claim_module._claims)
    os.close(reading)
    os.close(writing)


def lose_the_answer(sql: Sql, monkeypatch: pytest.MonkeyPatch, carried_out: bool = True) -> None:
    """Let the next claim be committed, or not, and its session end before the answer."""
    send = claim_module._Claim.send

    def send_and_lose(self: Any, tried_before: bool) -> list[Lease]:
        if tried_before:
            return send(self, tried_before)
        if carried_out:
            send(self, tried_before)
        end_own_session(sql)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        raise AssertionError("the session goes on")

    monkeypatch.setattr(claim_module._Claim, "send", send_and_lose)
