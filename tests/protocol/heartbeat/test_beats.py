"""What a heartbeat sends, on which connection, and what it leaves alone."""

import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import Settings

from jobreaper import Lease, LeaseLost, claim_next, control, reap, signals
from jobreaper.protocol import heartbeat, renewing
from jobreaper.protocol.holding import holding_of
from jobreaper.states import Status
from project.media.models import AsrJob, Job
from tests.protocol.heartbeat.conftest import THREAD, Beats, Sql, last_beat
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


def plant(sql: Sql, count: int = 1, table: str = "jobs", stage: str | None = None) -> None:
    sql(f"INSERT INTO {table} (stage) SELECT %s FROM generate_series(1, %s)", stage, count)


def hold_one(sql: Sql, stage: str | None = None) -> Lease:
    """A lease that is being beaten; the heart forgets it after the test."""
    plant(sql, stage=stage)
    [lease] = claim_next(Job)
    return lease.__enter__()


def is_renewed(lease: Lease) -> bool:
    before = last_beat(lease)
    return until(lambda: last_beat(lease) != before)


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_one_statement_a_table_renews_every_lease_of_the_process(sql: Sql, beats: Beats) -> None:
    plant(sql, 40)
    plant(sql, 20, "asr_jobs")
    for lease in [*claim_next(Job, 40), *claim_next(AsrJob, 20)]:
        lease.__enter__()

    # The first beat may have gone out before the last lease had joined.
    beats.wait_for("jobs", 1)
    for sent in beats.wait_for("jobs"):
        assert len(sent["ids"]) == 40
    for sent in beats.wait_for("asr_jobs"):
        assert len(sent["ids"]) == 20


def test_many_leases_are_renewed_in_parts_that_are_mixed_anew_each_time(
    sql: Sql, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "MOST_AT_ONCE", 10)
    plant(sql, 40)
    leases = claim_next(Job, 40)
    for lease in leases:
        lease.__enter__()
    beats.wait_for("jobs", 15)
    assert len(heartbeat_threads()) == 1
    heartbeat.heart.stop()
    sent = [frozenset(each["ids"]) for each in beats.to("jobs")]
    one, other = sent[-4:], sent[-8:-4]
    assert [len(part) for part in one] == [10] * 4
    assert frozenset().union(*one) == {lease.pk for lease in leases}
    assert frozenset(one) != frozenset(other)


def test_beats_are_committed_while_the_works_own_transaction_is_open_and_survive_its_rollback(
    sql: Sql, beats: Beats
) -> None:
    lease = hold_one(sql)
    [claimed] = sql("SELECT last_heartbeat_at FROM jobs")
    with transaction.atomic():
        AsrJob.objects.create()
        beats.wait_for("jobs")
        until(lambda: sql("SELECT last_heartbeat_at FROM jobs") != [claimed])
        transaction.set_rollback(True)
    assert sql("SELECT last_heartbeat_at FROM jobs") != [claimed]
    assert not AsrJob.objects.exists()
    connection.ensure_connection()
    assert connection.connection.info.backend_pid not in beats.backends
    lease.finish()


def test_the_heartbeat_keeps_one_connection_and_gives_it_up_with_the_last_lease(
    sql: Sql, beats: Beats
) -> None:
    lease = hold_one(sql)
    beats.wait_for("jobs", 4)
    [backend] = beats.backends
    connected = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
    assert sql(connected, backend)
    lease.finish()
    until(lambda: not sql(connected, backend))


def test_a_terminated_heartbeat_connection_is_made_anew(sql: Sql, beats: Beats) -> None:
    lease = hold_one(sql)
    beats.wait_for("jobs", 1)
    sql("SELECT pg_terminate_backend(%s)", beats.backends[0])
    until(lambda: len(beats.backends) > 1)
    assert is_renewed(lease)
    assert not lease.lost


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_wrong_application_clock_changes_nothing(
    minutes: int, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """db-scheduler#433: ten minutes of skew on a worker, in either direction."""
    real_time, real_now = time.time, timezone.now
    monkeypatch.setattr(time, "time", lambda: real_time() + minutes * 60)
    monkeypatch.setattr(timezone, "now", lambda: real_now() + timedelta(minutes=minutes))
    lease = hold_one(sql)
    assert is_renewed(lease)
    assert reap().requeued == 0
    [times] = sql(
        "SELECT abs(extract(epoch FROM now() - claimed_at)) < 20 AS claimed,"
        " abs(extract(epoch FROM now() - last_heartbeat_at)) < 20 AS beaten,"
        " extract(epoch FROM lease_expires_at - last_heartbeat_at) BETWEEN 30 AND 40 AS leased"
        " FROM jobs"
    )
    assert times == {"claimed": True, "beaten": True, "leased": True}
    assert not lease.lost
    lease.finish()


def test_threads_that_hog_the_interpreter_do_not_starve_the_beat(sql: Sql, beats: Beats) -> None:
    lease = hold_one(sql)
    stop = threading.Event()

    def hog() -> None:
        while not stop.is_set():
            sum(range(10_000))

    hogs = [threading.Thread(target=hog) for _ in range(8)]
    for thread in hogs:
        thread.start()
    try:
        beats.wait_for("jobs", 5)
    finally:
        stop.set()
        for thread in hogs:
            thread.join()
    assert not lease.lost


def test_a_table_locked_by_a_migration_does_not_silence_the_beats_of_another(
    sql: Sql,
    beats: Beats,
    second_connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewing, "LOCK_TIMEOUT_SEC", 0.3)
    plant(sql, 1, "asr_jobs")
    [asr] = claim_next(AsrJob)
    job = hold_one(sql)
    asr.__enter__()
    beats.wait_for("asr_jobs", 1)
    second_connection.execute("ALTER TABLE asr_jobs ADD COLUMN later text")
    beats.wait_for("jobs", 3)
    assert not asr.lost

    second_connection.rollback()
    assert is_renewed(asr)
    assert is_renewed(job)


def test_a_row_locked_by_the_jobs_own_transaction_is_passed_over_and_not_taken_for_lost(
    sql: Sql, beats: Beats
) -> None:
    locked, other = hold_one(sql), hold_one(sql)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=locked.pk)
        [before] = sql("SELECT last_heartbeat_at FROM jobs WHERE id = %s", locked.pk)
        beats.wait_for("jobs", 3)
        assert is_renewed(other)
        assert sql("SELECT last_heartbeat_at FROM jobs WHERE id = %s", locked.pk) == [before]
        locked.check()
    assert is_renewed(locked)


def test_a_job_locked_by_its_own_transaction_past_its_lease_is_beaten_as_soon_as_it_is_free(
    sql: Sql, beats: Beats
) -> None:
    lease = hold_one(sql)
    with transaction.atomic():
        Job.objects.filter(pk=lease.pk).update(
            payload={"progress": 0.5}, lease_expires_at=timezone.now() - timedelta(seconds=1)
        )
        beats.wait_for("jobs", 3)
        lease.check()
    until(lambda: sql("SELECT 1 FROM jobs WHERE lease_expires_at > now()"))
    assert reap().requeued == 0
    lease.finish()


def test_a_heartbeat_leaves_the_other_columns_alone(sql: Sql, beats: Beats) -> None:
    lease = hold_one(sql)
    columns = "to_jsonb(jobs) - 'last_heartbeat_at' - 'lease_expires_at' AS columns"
    before = sql(f"SELECT {columns} FROM jobs")
    assert is_renewed(lease)
    assert sql(f"SELECT {columns} FROM jobs") == before


def test_the_deadline_ends_the_lease_however_often_it_is_beaten(
    sql: Sql, beats: Beats, settings: Settings
) -> None:
    settings.JOBREAPER = {"STAGES": {"clip": {"max_runtime": 1}}}
    lease = hold_one(sql, stage="clip")
    until(lambda: lease.lost)
    with pytest.raises(LeaseLost, match="the max_runtime of its stage is over"):
        lease.check()
    [row] = sql("SELECT lease_expires_at = deadline_at AS ends_with_it, deadline_at FROM jobs")
    assert row["ends_with_it"]
    assert lease.expires_at == row["deadline_at"]
    assert len(beats.to("jobs")) >= 3
    until(lambda: reap().requeued_ids["jobs"] == [lease.pk])
    with pytest.raises(LeaseLost):
        lease.finish()


def test_a_lease_that_was_taken_away_is_known_at_the_next_beat_and_stays_lost(
    sql: Sql, beats: Beats
) -> None:
    lease, other = hold_one(sql), hold_one(sql)
    sql("UPDATE jobs SET lease_epoch = lease_epoch + 1 WHERE id = %s", lease.pk)
    until(lambda: lease.lost)
    sql("UPDATE jobs SET lease_epoch = lease_epoch - 1 WHERE id = %s", lease.pk)
    assert {tuple(sent["ids"]) for sent in beats.wait_for("jobs")} == {(other.pk,)}
    assert lease.lost
    for verb in (lease.check, lease.heartbeat):
        with pytest.raises(LeaseLost):
            verb()


def test_a_cancelled_job_tells_its_worker_at_the_next_beat(sql: Sql) -> None:
    """pulp 7389: cancel wins."""
    lease = hold_one(sql)
    control.cancel(Job, [lease.pk], by="operator")
    until(lambda: lease.lost)
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    assert lost.value.status == Status.CANCELLED


def test_a_late_beat_does_not_steal_the_lease_back(sql: Sql) -> None:
    """lion-reader#917: zero rows, lease lost."""
    plant(sql)
    [late] = claim_next(Job)
    sql("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    reap()
    sql("UPDATE jobs SET next_earliest_run_at = NULL")
    [lease] = claim_next(Job)
    with pytest.raises(LeaseLost):
        late.heartbeat()
    [row] = sql("SELECT locked_by, lease_epoch, lease_expires_at FROM jobs")
    assert (row["lease_epoch"], row["lease_expires_at"]) == (lease.epoch, lease.expires_at)


def test_check_asks_no_server(sql: Sql) -> None:
    lease = hold_one(sql)
    connection.ensure_connection()
    sent: list[str] = []

    def refuse(execute: Any, text: str, *rest: Any) -> Any:
        sent.append(text)
        return execute(text, *rest)

    with connection.execute_wrapper(refuse):
        for _ in range(1000):
            lease.check()
            assert not lease.lost
    assert sent == []


def test_an_answer_that_took_long_does_not_lengthen_the_lease(sql: Sql, settings: Settings) -> None:
    """The lease ends by the clock of the database; the way back of its answer is not given away."""
    settings.JOBREAPER = {"STAGES": {"clip": {"max_runtime": 1.5}}}
    plant(sql, stage="clip")
    delay_sec = 0.5

    def slow_network(execute: Any, *arguments: Any) -> Any:
        answer = execute(*arguments)
        time.sleep(delay_sec)
        return answer

    with connection.execute_wrapper(slow_network):
        [lease] = claim_next(Job)
    until(lambda: lease.lost, every_sec=0.001)
    [row] = sql("SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) AS left FROM jobs")
    assert row["left"] > -delay_sec / 2


def test_a_lease_too_short_for_the_usual_interval_is_beaten_in_time(
    sql: Sql, settings: Settings
) -> None:
    settings.JOBREAPER = {
        "HEARTBEAT_SEC": 15,
        "DEFAULT_LEASE_SEC": 60,
        "STAGES": {"clip": {"max_runtime": 1.5}},
    }
    hold_one(sql, stage="asr")
    short = hold_one(sql, stage="clip")
    beaten = "SELECT 1 FROM jobs WHERE id = %s AND last_heartbeat_at > claimed_at"
    until(lambda: sql(beaten, short.pk))
    assert not short.lost


def test_the_beats_of_a_fleet_do_not_fall_into_step(sql: Sql) -> None:
    lease = hold_one(sql)
    waits = {heartbeat._interval_sec([holding_of(lease)]) for _ in range(100)}
    assert len(waits) > 90
    assert 0.09 <= min(waits) < max(waits) <= 0.1


def test_stop_ends_the_thread_and_the_next_lease_starts_another(sql: Sql, beats: Beats) -> None:
    hold_one(sql)
    beats.wait_for("jobs", 1)
    heartbeat.heart.stop()
    assert heartbeat_threads() == []
    lease = hold_one(sql)
    assert is_renewed(lease)
    assert len(heartbeat_threads()) == 1


def test_a_receiver_that_raises_does_not_stop_the_beats(sql: Sql, beats: Beats) -> None:
    raised = threading.Event()

    def raise_it(**_: object) -> None:
        raised.set()
        raise ZeroDivisionError

    signals.heartbeat_failed.connect(raise_it)
    try:
        lease = hold_one(sql)
        beats.wait_for("jobs", 1)
        sql("ALTER TABLE jobs RENAME COLUMN last_heartbeat_at TO away")
        try:
            assert raised.wait(20)
        finally:
            sql("ALTER TABLE jobs RENAME COLUMN away TO last_heartbeat_at")
        assert is_renewed(lease)
    finally:
        signals.heartbeat_failed.disconnect(raise_it)


def test_a_companion_that_raises_does_not_stop_the_beats(sql: Sql, beats: Beats) -> None:
    raised: list[str] = []

    class Broken:
        def next_turn(self, held: object) -> float | None:
            return None if "turn" in raised else 0.0

        def take_turn(self, held: object) -> None:
            raised.append("turn")
            raise ZeroDivisionError

        def idle(self) -> None:
            raised.append("idle")
            raise ZeroDivisionError

    lease = hold_one(sql)
    companion = Broken()
    heartbeat.heart.accompany(companion)
    try:
        until(lambda: "turn" in raised)
        assert is_renewed(lease)
        [thread] = heartbeat_threads()
        heartbeat.heart.remove(holding_of(lease))
        until(lambda: "idle" in raised)
        assert is_renewed(hold_one(sql))
        assert heartbeat_threads() == [thread]
    finally:
        heartbeat.heart._companions.remove(companion)
