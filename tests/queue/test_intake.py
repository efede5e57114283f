"""What a worker claims, how much of it, and when."""

import threading
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import enqueue, enqueue_many, job_handler, pause
from jobreaper.db import prepared
from jobreaper.identity import local_clock
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group
from jobreaper.queue.intake import FIRST_REST_SEC, GROWTH, LONGEST_REST_SEC, Intake
from jobreaper.queue.runs import Tally
from jobreaper.queue.worker import Worker
from jobreaper.tables import table_of
from tests.queue.working import Gate, idle, once
from tests.rows import Rows, Sql, ago
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_a_type_without_a_handler_waits_unharmed_and_is_named(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    job = enqueue("nobodys")
    before = jobs.row(job.pk)
    assert once() == Tally()
    assert jobs.row(job.pk) == before
    assert (
        "nothing handles these jobs of jobreaper_jobs, so they wait: {'nobodys': 1}" in caplog.text
    )


def test_only_the_types_and_stages_asked_for_are_run(jobs: Rows) -> None:
    job_handler("other")(lambda job, lease: None)
    mine, other, elsewhere = enqueue("idle"), enqueue("other"), enqueue("idle", stage="elsewhere")
    assert once(types=["idle"], stages=["idle"]).claimed == 1
    assert jobs.row(mine.pk)["status"] == "success"
    assert {jobs.row(job.pk)["status"] for job in (other, elsewhere)} == {"queued"}


def test_what_is_paused_scheduled_or_of_another_table_is_left(jobs: Rows) -> None:
    enqueue("idle")
    jobs.plant(type="idle", next_earliest_run_at=ago(-60))
    pause("idle")
    assert once() == Tally()


def test_the_pace_is_known_before_the_first_jobs_are_ended(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.in_hand.LINGER_SEC", 600)
    enqueue_many([{}] * 3, type="idle")
    enqueue_many([{}], type="gate")
    [lane] = Worker(batch=100)._lanes
    lane.hand.take(claim_group(table_of(Job), 4, types=["idle", "gate"]))
    lane.crew.start()
    until(lambda: gate.entered)
    lane.end_done()
    assert lane.hand.tally.succeeded == 0
    assert lane.intake.window == GROWTH
    gate.open.set()
    lane.dismiss()
    lane.end_done(at_once=True)


@override_settings(JOBREAPER={"STAGES": {"gate": {"max_running": 1}}})
def test_max_running_holds_for_threads_as_well(gate: Gate, working: Any) -> None:
    enqueue_many([{}] * 3, type="gate")
    enqueue_many([{}] * 3, type="idle")
    worker = working(concurrency=3)
    until(lambda: worker.tally.succeeded == 3)
    assert len(gate.entered) == 1
    gate.open.set()
    until(lambda: worker.tally.succeeded == 6)


@override_settings(JOBREAPER={"STAGES": {"one-by-one": {"max_running": 1}}})
def test_the_next_job_of_a_full_stage_is_claimed_when_one_ends_and_not_when_it_is_time_to_look(
    working: Any,
) -> None:
    @job_handler("one-by-one")
    def run(job: Any, lease: Any) -> None:
        if job.payload.get("fails"):
            raise ValueError

    enqueue_many(
        ({"payload": {"fails": n % 3 == 0}} for n in range(9)), max_attempts=1, type="one-by-one"
    )
    worker = working(poll_sec=600, listen=False)
    until(lambda: (worker.tally.succeeded, worker.tally.failed) == (6, 3))


def test_threads_run_side_by_side(working: Any) -> None:
    meet = threading.Barrier(3)
    job_handler("meets")(lambda job, lease: meet.wait(20) and None)
    enqueue_many([{}] * 6, type="meets")
    worker = working(concurrency=3)
    until(lambda: worker.tally.succeeded == 6)


def test_a_slow_job_is_claimed_alone(gate: Gate, working: Any, jobs: Rows) -> None:
    enqueue_many([{}] * 20, type="gate")
    working()
    until(lambda: gate.entered)
    [running] = jobs.sql("SELECT count(*) FROM jobreaper_jobs WHERE status = 'processing'")
    assert running == {"count": 1}


def test_a_job_that_takes_longer_than_thought_does_not_keep_others_from_other_workers(
    gate: Gate, working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.intake.LONGEST_WAIT_SEC", 0.2)
    enqueue_many([{}] * 40, type="idle")
    enqueue_many([{}], type="gate")
    behind = enqueue_many([{}] * 10, type="idle").ids
    worker = working()
    until(lambda: gate.entered)
    until(lambda: worker.tally.succeeded == 40)
    # All were claimed together, by the pace of those before; what waits is given back.
    until(lambda: {jobs.row(pk)["status"] for pk in behind} == {"queued"})
    assert {jobs.row(pk)["attempt_count"] for pk in behind} == {0}
    other = working()
    until(lambda: other.tally.succeeded == 10)


def test_jobs_of_which_none_is_slow_do_not_keep_a_long_line_from_other_workers(
    working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.queue.intake.LONGEST_WAIT_SEC", 0.5)
    moment = threading.Event()
    job_handler("short")(lambda job, lease: moment.wait(0.1) and None)
    enqueue_many([{}] * 200, type="idle")
    enqueue_many([{}] * 100, type="short")
    worker = working()
    until(lambda: worker.tally.released)
    moment.set()
    until(lambda: worker.tally.succeeded == 300)
    [line] = jobs.sql("SELECT count(*) FROM job_events WHERE type = 'job:released'")
    assert line == {"count": worker.tally.released}


def test_a_job_that_waits_for_its_turn_is_given_back_long_before_its_deadline(
    gate: Gate, working: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No healthy job is reaped: max_runtime begins with the claim."""
    monkeypatch.setattr("jobreaper.queue.intake.LONGEST_WAIT_SEC", 600)
    enqueue_many([{}] * 400, type="idle")
    enqueue_many([{}], type="gate")
    behind = enqueue_many([{}] * 400, type="idle", stage="hasty").ids
    with override_settings(JOBREAPER={"STAGES": {"hasty": {"max_runtime": 10}}}):
        worker = working()
        until(lambda: gate.entered)
        until(lambda: worker.tally.released)
    [waited] = jobs.sql(
        "SELECT max(at - (data -> 'details' ->> 'claimed_at')::timestamptz) AS longest"
        " FROM job_events WHERE type = 'job:released'"
    )
    # A tenth of it, and what a busy machine adds.
    assert waited["longest"].total_seconds() < 5
    assert {jobs.row(pk)["attempt_count"] for pk in behind} == {0}


def test_a_worker_is_woken_by_what_is_enqueued(working: Any) -> None:
    worker = working(poll_sec=600)
    until(lambda: worker._lanes[0].intake.next_look > 0)
    until(listens)
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 1)


def listens() -> bool:
    return bool(listeners())


def listeners() -> list[int]:
    """The sessions that listen in this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND query = 'LISTEN \"jobreaper_jobs\"'"
        )
        return [pid for (pid,) in cursor.fetchall()]


def test_a_worker_that_hears_nothing_finds_its_jobs_by_looking(working: Any, jobs: Rows) -> None:
    """pulpcore#2506: a notification is missed, and work waits beside an idle worker."""
    worker = working(listen=False)
    jobs.plant(type="idle", next_earliest_run_at=ago(1))
    until(lambda: worker.tally.succeeded == 1)


def test_a_listener_whose_session_ends_listens_again(working: Any, sql: Sql) -> None:
    worker = working()
    until(listens)
    [listener] = listeners()
    sql("SELECT pg_terminate_backend(%s, 5000)", listener)
    until(lambda: listeners() not in ([], [listener]))
    enqueue("idle")
    until(lambda: worker.tally.succeeded == 1)


def test_a_worker_takes_its_types_from_an_iterator_too() -> None:
    job_handler("other")(idle)
    assert set(Worker(types=iter(["idle", "other"])).handlers) == {"idle", "other"}


def test_a_worker_that_heard_of_jobs_in_vain_rests_before_it_hears_again() -> None:
    intake = Intake(
        table_of(Job), types=["idle"], stages=None, concurrency=1, batch=9, poll_sec=900
    )

    def rest_after_hearing() -> float:
        intake.hear()
        return intake.next_look - local_clock() if intake.next_look else 0.0

    assert rest_after_hearing() == 0
    for doubled in range(8):
        assert intake.claim(0) == []
        assert intake._rest_sec == min(FIRST_REST_SEC * 2**doubled, LONGEST_REST_SEC)
        assert rest_after_hearing() <= intake._rest_sec
    # It looks at its usual time: others are idle too, and nothing was said in vain.
    assert intake.claim(0) == []
    intake.claim(0)
    assert rest_after_hearing() == 0
    assert intake.claim(0) == []
    enqueue("idle")
    intake.hear()
    assert len(intake.claim(0)) == 1
    assert rest_after_hearing() == 0


def test_a_few_hundred_quick_jobs_outweigh_a_slow_first_one() -> None:
    intake = Intake(
        table_of(Job), types=["idle"], stages=None, concurrency=1, batch=1000, poll_sec=900
    )
    intake.learn([0.05])
    slow = intake.window
    assert slow < 64
    intake.learn([0.00001] * 512)
    assert intake.window == min(slow * GROWTH, 2000)
    # One at a time, they count gradually: slow ones may be among them.
    intake.learn([0.05])
    intake.learn([0.00001])
    assert intake.window < 64


@pytest.mark.parametrize(("grace", "are_prepared"), [("10s", True), (0, False)])
def test_a_workers_claims_are_planned_once_where_its_lock_shows_that_no_pooler_is_in_between(
    grace: Any, are_prepared: bool
) -> None:
    connection.close()
    with override_settings(JOBREAPER={"PRESENCE_GRACE_SEC": grace}):
        intake = Intake(
            table_of(Job), types=["idle"], stages=None, concurrency=1, batch=1, poll_sec=1
        )
        for _ in range(prepared.THRESHOLD + 3):
            assert intake.claim(0) == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT statement FROM pg_prepared_statements")
            found = [text for (text,) in cursor.fetchall() if "jobreaper_jobs" in text]
    assert bool(found) == are_prepared
    connection.close()
