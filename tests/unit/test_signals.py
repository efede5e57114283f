"""Signals: what is sent, when, and that no receiver can do harm."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.dispatch import Signal
from django.test import override_settings

from jobreaper import LeaseLost, cancel, claim, reap, signals
from jobreaper.control.pauses import pause
from jobreaper.models import Job as QueueJob
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.protocol.lease import Lease
from jobreaper.queue import enqueue
from jobreaper.reaper import PassResult
from jobreaper.tables import table_of
from project.media.models import Job

pytestmark = pytest.mark.usefixtures("transactional_db")

# As the table in `jobreaper.signals` has them.
ARGUMENTS: dict[str, set[str]] = {
    "jobs_enqueued": {"pks"},
    "job_claimed": {"lease"},
    "run_started": {"lease"},
    "run_ended": {"lease", "error"},
    "job_finished": {"lease", "details"},
    "job_retried": {"lease", "details"},
    "job_failed": {"lease", "details"},
    "job_released": {"lease", "details"},
    "jobs_claimed": {"leases"},
    "jobs_finished": {"leases"},
    "lease_lost": {"lease", "reason", "status", "epoch"},
    "stale_write_rejected": {"lease", "verb", "status", "epoch"},
    "ending_refused": {"lease", "verb", "error"},
    "heartbeat_failed": {"alias", "table", "error", "leases"},
    "job_reaped": {"table", "jobs"},
    "job_changed_by_hand": {"table", "pk", "event", "by", "reason"},
    "change_refused": {"table", "pk", "event", "by", "error"},
    "pause_changed": {"table", "name", "paused", "by", "reason"},
    "pass_finished": {"result", "trigger"},
}

Heard = list[tuple[str, type, dict[str, Any]]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Every signal sent, in order: its name, sender and arguments."""
    sent: Heard = []
    receivers = []
    for name in ARGUMENTS:
        signal: Signal = getattr(signals, name)

        def receive(sender: type, *, heard_as: str = name, **arguments: Any) -> None:
            del arguments["signal"]
            sent.append((heard_as, sender, arguments))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield sent
    for signal, receive in receivers:
        signal.disconnect(receive)


def names(heard: Heard) -> list[str]:
    return [name for name, _, _ in heard]


def claimed(**columns: Any) -> Lease:
    lease = claim(Job, Job.objects.create(**columns).pk)
    assert lease is not None
    return lease


def let_run_out(lease: Lease) -> None:
    Job.objects.filter(pk=lease.pk).update(lease_expires_at=Now() - timedelta(seconds=1))


def lose(lease: Lease) -> None:
    let_run_out(lease)
    reap([Job])


def test_every_signal_is_in_the_table() -> None:
    assert {n for n, value in vars(signals).items() if isinstance(value, Signal)} == set(ARGUMENTS)


def do_everything() -> None:
    """Make every signal be sent."""
    claimed().finish()
    claimed().fail("E1", retry=True)
    claimed().fail("E2", retry=False)
    claimed().release()
    lost = claimed()
    lose(lost)
    with pytest.raises(LeaseLost):
        lost.heartbeat()
    with pytest.raises(LeaseLost):
        lost.finish()
    cancel(Job, [lost.pk], by="ann")
    miss_a_beat()
    enqueue("mail")
    finish_group(claim_group(table_of(QueueJob), 1))
    refuse_an_end()
    refuse_a_change()
    pause("mail")


def miss_a_beat() -> None:
    missed = threading.Event()

    def note(**_: object) -> None:
        missed.set()

    lease = claimed()
    signals.heartbeat_failed.connect(note)
    try:
        with override_settings(JOBREAPER={"HEARTBEAT_SEC": 0.05}), without_heartbeats(), lease:
            assert missed.wait(20)
    finally:
        signals.heartbeat_failed.disconnect(note)


def refuse_an_end() -> None:
    enqueue("mail")
    [run] = claim_group(table_of(QueueJob), 1)
    run.started_at = run.ended_at = run.claimed_at
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE jobreaper_jobs"
            " ADD CONSTRAINT refused CHECK (status <> 'success') NOT VALID"
        )
        try:
            finish_group([run])
        finally:
            cursor.execute("ALTER TABLE jobreaper_jobs DROP CONSTRAINT refused")


def refuse_a_change() -> None:
    chosen = [Job.objects.create(stage=stage).pk for stage in ("refused", "clip")]
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE jobs ADD CONSTRAINT refused CHECK (stage <> 'refused') NOT VALID"
        )
        try:
            cancel(Job, chosen, by="ann")
        finally:
            cursor.execute("ALTER TABLE jobs DROP CONSTRAINT refused")


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """Take a column away that beats write, as a migration gone wrong might."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs RENAME COLUMN last_heartbeat_at TO away")
        try:
            yield
        finally:
            cursor.execute("ALTER TABLE jobs RENAME COLUMN away TO last_heartbeat_at")


def test_each_signal_brings_what_the_table_says(heard: Heard) -> None:
    do_everything()
    assert set(names(heard)) == set(ARGUMENTS)
    for name, sender, arguments in heard:
        assert set(arguments) == ARGUMENTS[name], name
        assert sender in ((PassResult,) if name == "pass_finished" else (Job, QueueJob))


def test_a_receiver_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("a receiver's own trouble")

    all_signals = [getattr(signals, name) for name in ARGUMENTS]
    for signal in all_signals:
        signal.connect(fail)
    try:
        with caplog.at_level(logging.ERROR, "django.dispatch"):
            do_everything()
    finally:
        for signal in all_signals:
            signal.disconnect(fail)
    failures = [r for r in caplog.records if r.name == "django.dispatch"]
    assert len(failures) >= len(ARGUMENTS)


@pytest.mark.parametrize("verb", ["finish", "release"])
def test_the_end_of_a_job_is_announced_when_it_is_committed(heard: Heard, verb: str) -> None:
    lease = claimed()
    heard.clear()
    with transaction.atomic():
        getattr(lease, verb)()
        assert names(heard) == []
    assert names(heard) == ["job_finished" if verb == "finish" else "job_released"]


def test_an_end_that_is_rolled_back_is_never_announced(heard: Heard) -> None:
    lease = claimed()
    heard.clear()
    with transaction.atomic():
        lease.fail("E1", retry=False)
        transaction.set_rollback(True)
    assert names(heard) == []
    lease.finish()
    assert names(heard) == ["job_finished"]


def test_a_claim_that_is_rolled_back_is_never_announced(heard: Heard) -> None:
    job = Job.objects.create()
    with transaction.atomic():
        claim(Job, job.pk)
        transaction.set_rollback(True)
    assert names(heard) == []


def test_a_reap_that_is_rolled_back_is_never_announced(heard: Heard) -> None:
    let_run_out(claimed())
    heard.clear()
    with transaction.atomic():
        assert reap([Job]).requeued == 1
        transaction.set_rollback(True)
    assert "job_reaped" not in names(heard)


def test_a_change_by_hand_that_is_rolled_back_is_never_announced(heard: Heard) -> None:
    job = Job.objects.create()
    with transaction.atomic():
        assert cancel(Job, [job.pk], by="ann") == [job.pk]
        transaction.set_rollback(True)
    assert names(heard) == []


def test_a_rejected_write_is_announced_even_if_its_transaction_is_rolled_back(
    heard: Heard,
) -> None:
    lease = claimed()
    lose(lease)
    heard.clear()
    with pytest.raises(LeaseLost), transaction.atomic():
        lease.finish()
    [(name, _, arguments)] = heard
    assert name == "stale_write_rejected"
    assert arguments == {
        "lease": lease,
        "verb": "finish",
        "status": "queued",
        "epoch": lease.epoch + 1,
    }


def test_a_job_that_succeeded_is_announced_as_nothing_else(heard: Heard) -> None:
    # Whatever comes late: the pass after its lease would have ended, a second finish.
    lease = claimed()
    lease.finish()
    let_run_out(lease)
    reap([Job])
    assert names(heard) == ["job_claimed", "job_finished", "pass_finished"]


def test_a_dry_run_announces_nothing(heard: Heard) -> None:
    let_run_out(claimed())
    heard.clear()
    assert reap([Job], dry_run=True).requeued == 1
    assert heard == []


def test_the_details_of_an_end_are_those_of_its_event(heard: Heard) -> None:
    lease = claimed(stage="clip")
    lease.fail("E1", "went wrong", retry=False)
    details = heard[-1][2]["details"]
    assert details["fail_code"] == "E1"
    assert details["fail_reason"] == "went wrong"
    assert details["stage"] == "clip"
    assert details["duration_ms"] >= 0
