"""Beats, and the transactions that the work itself has open."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from jobreaper import claim, hold, reap, signals
from jobreaper.db import fetch
from jobreaper.protocol import batch, ending
from jobreaper.protocol.batch import claim_group, finish_group, release_group
from jobreaper.protocol.heartbeat import beat
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.phases import Phase
from jobreaper.tables import table_of
from project.media.models import Job
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql, ago
from tests.waiting import until


@pytest.fixture(autouse=True)
def beating_fast(settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.05}


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each beat of a lease found, in order."""
    found: list[Any] = []
    beaten = Holding.beaten

    def note(self: Holding, outcome: Any, sent_at: float) -> None:
        beaten(self, outcome, sent_at)
        found.append(outcome)

    monkeypatch.setattr(Holding, "beaten", note)
    return found


@pytest.fixture
def lost() -> Iterator[list[Any]]:
    """Every lease that was found lost."""
    found: list[Any] = []

    def note(lease: Any, **_: Any) -> None:
        found.append(lease)

    signals.lease_lost.connect(note)
    yield found
    signals.lease_lost.disconnect(note)


def wait_for_beats(beats: list[Any], number: int = 3) -> None:
    seen = len(beats)
    until(lambda: len(beats) >= seen + number)


def wait_for_renewal(jobs: Rows, key: int) -> None:
    before = jobs.row(key)["last_heartbeat_at"]
    until(lambda: jobs.row(key)["last_heartbeat_at"] > before)


def lock(key: int) -> None:
    Job.objects.select_for_update().get(pk=key)


def test_beats_pass_over_a_job_that_the_works_own_transaction_has_locked(
    jobs: Rows, beats: list[Any], lost: list[Any]
) -> None:
    key = jobs.plant()
    with hold(Job, key) as lease:
        with transaction.atomic():
            lock(key)
            before = jobs.row(key)
            wait_for_beats(beats)
            assert jobs.row(key) == before
            assert all(outcome.held for outcome in beats)
            lease.check()
        # Free again, it is renewed again.
        wait_for_renewal(jobs, key)
    assert lost == []
    assert jobs.row(key)["status"] == "success"


def test_a_locked_job_whose_lease_ran_out_meanwhile_is_not_reaped_and_not_lost(
    jobs: Rows, beats: list[Any], lost: list[Any], rivals: Rivals
) -> None:
    key = jobs.plant()
    with hold(Job, key) as lease, transaction.atomic():
        jobs.set(key, lease_expires_at=ago(100))
        lock(key)
        wait_for_beats(beats)
        assert rivals.start(lambda: reap([Job], hold=False)).result().requeued == 0
        lease.check()
        lease.finish()
    assert lost == []
    assert jobs.event_types(key) == ["job:finished"]


def test_one_locked_job_does_not_keep_the_others_from_their_beats(jobs: Rows) -> None:
    locked, free = jobs.plant(), jobs.plant()
    with hold(Job, locked), hold(Job, free), transaction.atomic():
        lock(locked)
        wait_for_renewal(jobs, free)


@pytest.fixture
def results(sql: Sql) -> Iterator[str]:
    """A table of the work's own that refers to its job."""
    sql("CREATE TABLE results (id serial PRIMARY KEY, job_id bigint REFERENCES jobs)")
    yield "results"
    sql("DROP TABLE results")


def insert_result(key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO results (job_id) VALUES (%s)", [key])


def test_a_result_inserted_by_the_work_does_not_stop_the_beats(jobs: Rows, results: str) -> None:
    # The reference takes a KEY SHARE lock on the job's row until the transaction ends.
    key = jobs.plant()
    with hold(Job, key), transaction.atomic():
        insert_result(key)
        for _ in range(3):
            wait_for_renewal(jobs, key)


def test_a_result_inserted_by_a_dead_workers_open_transaction_does_not_stop_the_reaper(
    jobs: Rows, results: str, rivals: Rivals
) -> None:
    key = jobs.plant_expired()
    with transaction.atomic():
        insert_result(key)
        assert rivals.start(lambda: reap([Job], hold=False)).result().requeued == 1


def test_a_result_inserted_early_does_not_stop_a_claim(
    jobs: Rows, results: str, rivals: Rivals
) -> None:
    key = jobs.plant()
    with transaction.atomic():
        insert_result(key)
        assert rivals.start(lambda: claim(Job, key)).result() is not None


def test_a_claim_that_is_not_committed_yet_is_not_taken_for_lost(
    jobs: Rows, beats: list[Any], lost: list[Any]
) -> None:
    key = jobs.plant()
    with transaction.atomic(), hold(Job, key) as lease:
        wait_for_beats(beats)
        lease.check()
    assert lost == []
    assert jobs.row(key)["status"] == "success"


def test_a_job_created_and_claimed_in_one_transaction_is_not_taken_for_lost(
    jobs: Rows, beats: list[Any], lost: list[Any]
) -> None:
    with transaction.atomic():
        job = Job.objects.create()
        with hold(Job, job.pk) as lease:
            wait_for_beats(beats)
            lease.check()
    assert lost == []
    assert jobs.row(job.pk)["status"] == "success"


def test_a_claim_that_was_rolled_back_is_lost_in_the_end(jobs: Rows, beats: list[Any]) -> None:
    key = jobs.plant()
    with transaction.atomic():
        lease = claim(Job, key)
        transaction.set_rollback(True)
    assert lease is not None
    other = claim(Job, key, worker="w2")
    assert other is not None
    other.release()
    assert claim(Job, key, worker="w3")
    with lease:
        until(lambda: lease.lost)
    assert jobs.row(key)["locked_by"] == "w3"


def test_a_finish_that_is_not_committed_yet_is_not_taken_for_a_loss(
    jobs: Rows, beats: list[Any], lost: list[Any]
) -> None:
    key = jobs.plant()
    with hold(Job, key) as lease, transaction.atomic():
        lease.finish()
        wait_for_beats(beats)
        assert not lease.lost
    assert lost == []
    assert jobs.row(key)["status"] == "success"


def test_beats_go_on_after_a_finish_that_was_rolled_back(jobs: Rows, lost: list[Any]) -> None:
    key = jobs.plant()
    with hold(Job, key) as lease:
        with transaction.atomic():
            lease.finish()
            transaction.set_rollback(True)
        wait_for_renewal(jobs, key)
    assert lost == []
    assert jobs.row(key)["status"] == "success"


def test_a_beat_between_the_finish_and_its_answer_is_no_loss(
    jobs: Rows, lost: list[Any], monkeypatch: pytest.MonkeyPatch, rivals: Rivals
) -> None:
    # The finish is committed; before the worker's thread hears of it, a beat finds the job done.
    lease = claim(Job, jobs.plant())
    assert lease is not None
    send = ending.send

    def send_and_be_slow(held: Holding, *args: Any) -> dict[str, Any]:
        answer = send(held, *args)
        rivals.start(lambda: beat(connection, table_of(Job), [held])).result()
        return answer

    monkeypatch.setattr(ending, "send", send_and_be_slow)
    lease.finish()
    assert lost == []
    assert not lease.lost
    assert jobs.row(lease.pk)["status"] == "success"


@pytest.mark.parametrize("end", [finish_group, release_group])
def test_a_beat_between_the_end_of_many_and_its_answer_is_no_loss(
    end: Any, jobs: Rows, lost: list[Any], monkeypatch: pytest.MonkeyPatch, rivals: Rivals
) -> None:
    table = table_of(Job)
    for _ in range(2):
        jobs.plant()
    runs = claim_group(table, 2)
    holdings = [run.holding for run in runs]

    def fetch_and_be_slow(*args: Any) -> Any:
        answer = fetch(*args)
        rivals.start(lambda: beat(connection, table, holdings)).result()
        return answer

    monkeypatch.setattr(batch, "fetch", fetch_and_be_slow)
    assert end(runs).ended == runs
    assert lost == []
    assert {held.phase for held in holdings} == {Phase.ENDED}
