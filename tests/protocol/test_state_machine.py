"""Everything that workers, reapers and operators can do, in any order, against a plain model.

The model knows the rules of `jobreaper.policies` and nothing of SQL. After every step the table
must equal it, and hold the invariants that no model is needed for.

Time stands still between steps that move it: such a step shifts every timestamp of the table by
whole hours, and every length of time in the policies ends on half an hour. So no comparison is ever
close, however slow the machine.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

import jobreaper
from jobreaper import Lease, LeaseClosed, LeaseLost, conf, control, policies
from jobreaper.heartbeat import beat
from jobreaper.policies import StagePolicy
from jobreaper.states import TERMINAL, EventType, Reason, Status
from jobreaper.tables import table_of
from jobreaper.worker_lost import give_back
from project.media.models import Job
from tests.protocol.ways import TERMINAL_EVENTS
from tests.rows import Rows, Sql

HOUR = 3600.0

JOBREAPER = {
    "DEFAULT_LEASE_SEC": "90m",
    "JOB_RETRY_BACKOFF_MS_BASE": "30m",
    "JOB_RETRY_BACKOFF_MS_MAX": "30m",
    # The server of a test may be minutes old.
    "RECOVERY_GRACE_SEC": 0,
    "STAGES": {
        "clip": {"sla_factor": 6, "backoff": ["30m", "150m"]},
        "capped": {"max_runtime": "150m"},
        "budget": {"max_reaps": 2},
        "strict": {"on_expiry": "fail"},
        "silent": {"ttl": "210m", "max_reaps": 3},
    },
}
STAGES = [None, "clip", "capped", "budget", "strict", "silent", "unheard-of"]
WORKERS = ["w1", "w2"]


@dataclass
class ModelJob:
    """What a row should say. Times are hours since the start."""

    stage: str | None
    max_attempts: int
    expected_duration_ms: int | None
    run_at: float | None
    status: Status = Status.QUEUED
    epoch: int = 0
    attempts: int = 0
    reaps: int = 0
    locked_by: str | None = None
    claimed_at: float | None = None
    beaten_at: float | None = None
    lease_end: float | None = None
    deadline: float | None = None
    fail_code: str | None = None
    events: list[str] = field(default_factory=list)

    @property
    def policy(self) -> StagePolicy:
        return conf.settings().policy(self.stage)

    @property
    def running(self) -> bool:
        return self.status is Status.PROCESSING

    @property
    def exhausted(self) -> bool:
        return self.attempts >= self.max_attempts

    def is_due(self, now: float) -> bool:
        return self.status is Status.QUEUED and (self.run_at is None or self.run_at <= now)

    def lease_from(self, now: float) -> float:
        end = now + policies.lease_seconds(self.policy, self.expected_duration_ms) / HOUR
        return end if self.deadline is None else min(end, self.deadline)

    def backoff(self) -> float:
        return policies.backoff_ms(self.policy, self.attempts) / 1000 / HOUR

    def is_lost(self, now: float) -> bool:
        """Whether a pass takes the job."""
        if not self.running or (
            self.run_at is not None and self.run_at > now and not self.exhausted
        ):
            return False
        if self.lease_end is not None:
            return self.lease_end < now
        signs = [at for at in (self.beaten_at, self.claimed_at) if at is not None]
        ttl = self.policy.ttl_sec
        return ttl is not None and bool(signs) and max(signs) + ttl / HOUR < now

    def is_held_by(self, lease: "ModelLease") -> bool:
        return self.running and self.epoch == lease.epoch

    def claim(self, worker: str, now: float) -> None:
        self.status = Status.PROCESSING
        self.locked_by = worker
        self.claimed_at = self.beaten_at = now
        longest = self.policy.max_runtime_sec
        self.deadline = None if longest is None else now + longest / HOUR
        self.lease_end = self.lease_from(now)
        self.attempts += 1
        self.epoch += 1

    def leave(self, status: Status, event: str) -> None:
        self.status = status
        self.locked_by = self.claimed_at = self.lease_end = self.deadline = None
        self.events.append(event)

    def reap(self, now: float, reason: Reason) -> Status:
        verdict = policies.verdict(
            self.policy,
            reason=reason,
            attempt_count=self.attempts,
            max_attempts=self.max_attempts,
            reap_count=self.reaps,
        )
        if reason is Reason.WORKER_LOST:
            event = str(EventType.JOB_WORKER_LOST)
        elif verdict.fail_code is None:
            event = str(EventType.REAPER_REQUEUED)
        else:
            event = f"reaper:failed({verdict.fail_code})"
        if verdict.fail_code is None:
            waits = reason is not Reason.WORKER_LOST or self.reaps > 0
            self.run_at = now + (self.backoff() if waits else 0)
        else:
            self.fail_code = verdict.fail_code
        self.attempts -= verdict.gives_attempt_back
        self.reaps += 1
        self.epoch += 1
        self.leave(verdict.status, event)
        return verdict.status


@dataclass
class ModelLease:
    """What a worker holds, and whether it knows that it does not."""

    lease: Lease
    key: int
    epoch: int
    told: bool = False
    closed: bool = False


VERBS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1", "went wrong"),
    "give up": lambda lease: lease.fail("E2", retry=False),
    "release": lambda lease: lease.release(),
}


class Protocol(RuleBasedStateMachine):
    """The rules. `sql` is set by the test."""

    sql: Sql

    keys = Bundle("keys")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows(self.sql)
        self.sql("DELETE FROM jobs")
        self.sql("DELETE FROM job_events")
        self.now = 0.0
        self.model: dict[int, ModelJob] = {}
        self.epochs: Counter[int] = Counter()
        self.table = table_of(Job)

    # What clients and time do.

    @rule(
        target=keys,
        stage=st.sampled_from(STAGES),
        max_attempts=st.integers(1, 3),
        expected_duration_ms=st.sampled_from([None, 900_000, 2_700_000]),
        delay_hours=st.sampled_from([None, None, 0.5, 2.5]),
    )
    def add(
        self,
        stage: str | None,
        max_attempts: int,
        expected_duration_ms: int | None,
        delay_hours: float | None,
    ) -> int:
        job = ModelJob(stage, max_attempts, expected_duration_ms, None)
        columns: dict[str, Any] = {}
        if delay_hours is not None:
            job.run_at = self.now + delay_hours
            columns["next_earliest_run_at"] = self.rows.now() + timedelta(hours=delay_hours)
        key: int = self.rows.plant(
            stage=stage,
            max_attempts=max_attempts,
            expected_duration_ms=expected_duration_ms,
            **columns,
        )
        self.model[key] = job
        return key

    @rule(hours=st.integers(1, 4))
    def let_time_pass(self, hours: int) -> None:
        self.now += hours
        for key in self.model:
            self.rows.let_time_pass(key, hours * HOUR)

    @rule(key=keys)
    def run_by_a_worker_from_before_leases(self, key: int) -> None:
        job = self.model[key]
        if job.status is not Status.QUEUED:
            return
        self.sql(
            "UPDATE jobs SET status = 'processing', attempt_count = attempt_count + 1,"
            " last_heartbeat_at = now() WHERE id = %s",
            key,
        )
        job.status = Status.PROCESSING
        job.attempts += 1
        job.beaten_at = self.now

    # What workers do.

    def _claimed(self, lease: Lease, worker: str) -> ModelLease:
        job = self.model[lease.pk]
        assert job.is_due(self.now)
        job.claim(worker, self.now)
        assert lease.epoch == job.epoch
        assert lease.worker == worker
        return ModelLease(lease, lease.pk, lease.epoch)

    @rule(target=leases, key=keys, worker=st.sampled_from(WORKERS))
    def claim(self, key: int, worker: str) -> Any:
        lease = jobreaper.claim(Job, key, worker=worker)
        assert (lease is not None) == self.model[key].is_due(self.now)
        return multiple() if lease is None else self._claimed(lease, worker)

    @rule(
        target=leases,
        n=st.integers(1, 4),
        worker=st.sampled_from(WORKERS),
        stages=st.none() | st.just(["clip", "budget"]),
    )
    def claim_next(self, n: int, worker: str, stages: list[str] | None) -> Any:
        due = [
            job
            for job in self.model.values()
            if job.is_due(self.now) and (stages is None or job.stage in stages)
        ]
        claimed = jobreaper.claim_next(Job, n, worker=worker, stages=stages)
        assert len(claimed) == min(n, len(due))
        assert all(self.model[lease.pk] in due for lease in claimed)
        return multiple(*(self._claimed(lease, worker) for lease in claimed))

    @rule(held=leases)
    def beat_one(self, held: ModelLease) -> None:
        job = self.model[held.key]
        if held.closed:
            with pytest.raises(LeaseClosed):
                held.lease.heartbeat()
            return
        if not held.told and job.is_held_by(held):
            job.lease_end = job.lease_from(self.now)
            job.beaten_at = self.now
            held.told = job.lease_end < self.now
        else:
            held.told = True
        if held.told:
            with pytest.raises(LeaseLost):
                held.lease.heartbeat()
        else:
            held.lease.heartbeat()
        assert held.lease.lost == held.told

    @rule(chosen=st.lists(leases, min_size=1, max_size=4, unique_by=id))
    def beat_many(self, chosen: list[ModelLease]) -> None:
        chosen = [held for held in chosen if not held.closed and not held.told]
        found = beat(connection, self.table, [held.lease for held in chosen])
        for held, outcome in zip(chosen, found, strict=True):
            job = self.model[held.key]
            assert outcome.held == job.is_held_by(held)
            if outcome.held:
                job.lease_end = job.lease_from(self.now)
                job.beaten_at = self.now
            held.told = not outcome.held or job.lease_from(self.now) < self.now
            assert held.lease.lost == held.told

    @rule(held=leases, verb=st.sampled_from(sorted(VERBS)))
    def end(self, held: ModelLease, verb: str) -> None:
        act = VERBS[verb]
        job = self.model[held.key]
        if held.closed:
            with pytest.raises(LeaseClosed):
                act(held.lease)
        elif not job.is_held_by(held):
            with pytest.raises(LeaseLost) as caught:
                act(held.lease)
            assert (caught.value.status, caught.value.epoch) == (job.status, job.epoch)
            job.events.append(EventType.JOB_STALE_WRITE_REJECTED)
            held.told = True
        else:
            act(held.lease)
            held.closed = True
            self._ended(job, verb)

    def _ended(self, job: ModelJob, verb: str) -> None:
        if verb == "finish":
            job.fail_code = None
            job.leave(Status.SUCCESS, EventType.JOB_FINISHED)
        elif verb == "release":
            job.attempts -= 1
            job.leave(Status.QUEUED, EventType.JOB_RELEASED)
        else:
            job.fail_code = "E1" if verb == "fail" else "E2"
            if verb == "fail" and not job.exhausted:
                job.run_at = self.now + job.backoff()
                job.leave(Status.QUEUED, EventType.JOB_RETRIED)
            else:
                job.leave(Status.FAILED, EventType.JOB_FAILED)

    @rule(held=leases, verb=st.sampled_from(sorted(VERBS)))
    def end_in_a_transaction_that_is_rolled_back(self, held: ModelLease, verb: str) -> None:
        if held.closed:
            return
        if self.model[held.key].is_held_by(held):
            with transaction.atomic():
                VERBS[verb](held.lease)
                assert held.lease.closed
                transaction.set_rollback(True)
            assert not held.lease.closed
        else:
            with pytest.raises(LeaseLost), transaction.atomic():
                VERBS[verb](held.lease)
            held.told = True

    @rule(held=leases)
    def save_the_job(self, held: ModelLease) -> None:
        job = self.model[held.key]
        before = self.rows.row(held.key)
        held.lease.job.payload = {"saves": before["payload"].get("saves", 0) + 1}
        if job.epoch == held.epoch:
            held.lease.job.save()
            assert self.rows.row(held.key) == {**before, "payload": held.lease.job.payload}
        else:
            with pytest.raises(LeaseLost):
                held.lease.job.save()
            assert self.rows.row(held.key) == before
            job.events.append(EventType.JOB_STALE_WRITE_REJECTED)

    # What the reaper and operators do.

    @rule(batch_size=st.sampled_from([None, 1, 2]))
    def reap(self, batch_size: int | None) -> None:
        before = self.rows.all()
        lost = {key for key, job in self.model.items() if job.is_lost(self.now)}
        dry = jobreaper.reap([Job], dry_run=True)
        assert self.rows.all() == before
        result = jobreaper.reap([Job], batch_size=batch_size)
        assert result.all_errors == []
        assert not result.held
        assert sorted(dry.requeued_ids["jobs"]) == sorted(result.requeued_ids["jobs"])
        assert sorted(dry.failed_ids["jobs"]) == sorted(result.failed_ids["jobs"])
        outcomes = {
            **dict.fromkeys(result.requeued_ids["jobs"], Status.QUEUED),
            **dict.fromkeys(result.failed_ids["jobs"], Status.FAILED),
        }
        assert set(outcomes) == lost
        for key in lost:
            row = before[key]
            is_live = row["lease_expires_at"] and row["lease_expires_at"] > self.rows.now()
            assert not is_live, "a healthy job was reaped"
            job = self.model[key]
            cut = job.deadline is not None and job.deadline == job.lease_end
            reason = Reason.DEADLINE if cut else Reason.LEASE_EXPIRED
            assert job.reap(self.now, reason) is outcomes[key]

    @rule(worker=st.sampled_from(WORKERS))
    def worker_dies_in_sight_of_its_parent(self, worker: str) -> None:
        held = {k: j for k, j in self.model.items() if j.running and j.locked_by == worker}
        taken = give_back(self.table, worker, "killed by SIGKILL")
        assert {job.pk for job in taken} == set(held)
        for job in held.values():
            job.reap(self.now, Reason.WORKER_LOST)

    @rule(key=keys)
    def cancel_by_hand(self, key: int) -> None:
        job = self.model[key]
        can = job.status in (Status.QUEUED, Status.PROCESSING)
        assert control.cancel(Job, [key], by="ann") == [key] * can
        if can:
            job.epoch += 1
            job.leave(Status.CANCELLED, EventType.ADMIN_CANCELLED)

    @rule(key=keys)
    def fail_by_hand(self, key: int) -> None:
        job = self.model[key]
        can = job.status in (Status.QUEUED, Status.PROCESSING)
        assert control.fail(Job, [key], by="ann", code="by hand") == [key] * can
        if can:
            job.epoch += 1
            job.fail_code = "by hand"
            job.leave(Status.FAILED, EventType.ADMIN_FAILED)

    @rule(key=keys)
    def requeue_by_hand(self, key: int) -> None:
        job = self.model[key]
        can = job.status in (Status.PROCESSING, Status.FAILED, Status.CANCELLED)
        assert control.requeue(Job, [key], by="ann") == [key] * can
        if can:
            job.epoch += 1
            job.attempts = job.reaps = 0
            job.run_at = self.now
            job.fail_code = None
            job.leave(Status.QUEUED, EventType.ADMIN_REQUEUED)

    # What must be true after every step.

    @invariant()
    def the_table_equals_the_model(self) -> None:
        rows = self.rows.all()
        database_now = self.rows.now()
        assert set(rows) == set(self.model)
        for key, row in rows.items():
            job = self.model[key]
            assert (
                row["status"],
                row["lease_epoch"],
                row["attempt_count"],
                row["reap_count"],
                row["locked_by"],
                row["fail_code"],
            ) == (job.status, job.epoch, job.attempts, job.reaps, job.locked_by, job.fail_code)
            for column, hours in (
                ("next_earliest_run_at", job.run_at),
                ("claimed_at", job.claimed_at),
                ("last_heartbeat_at", job.beaten_at),
                ("lease_expires_at", job.lease_end),
                ("deadline_at", job.deadline),
            ):
                at = row[column]
                assert (at is None) == (hours is None), column
                if at is not None and hours is not None:
                    off = (at - database_now).total_seconds() / HOUR - (hours - self.now)
                    assert abs(off) < 0.2, column

    @invariant()
    def every_action_has_its_event(self) -> None:
        written: dict[str, list[str]] = {str(key): [] for key in self.model}
        for event in self.sql("SELECT job_id, type FROM job_events ORDER BY id"):
            written[event["job_id"]].append(event["type"])
        assert written == {str(key): job.events for key, job in self.model.items()}

    @invariant()
    def the_epoch_never_goes_down(self) -> None:
        for key, row in self.rows.all().items():
            assert row["lease_epoch"] >= self.epochs[key]
            self.epochs[key] = row["lease_epoch"]

    @invariant()
    def each_row_is_of_one_piece(self) -> None:
        for row in self.rows.all().values():
            status = Status(row["status"])
            assert (row["finished_at"] is not None) == (status in TERMINAL)
            if status is not Status.PROCESSING:
                for column in ("locked_by", "claimed_at", "lease_expires_at", "deadline_at"):
                    assert row[column] is None
            assert 0 <= row["attempt_count"] <= row["max_attempts"]
            if status is Status.QUEUED:
                assert row["attempt_count"] < row["max_attempts"]

    @invariant()
    def each_terminal_status_has_one_event(self) -> None:
        for key, row in self.rows.all().items():
            has_ended = False
            for event in self.rows.events(key):
                if event["type"] == EventType.ADMIN_REQUEUED:
                    has_ended = False
                elif is_end(event):
                    assert not has_ended, "one job, ended twice"
                    has_ended = True
            assert has_ended == (row["status"] in TERMINAL)


def is_end(event: dict[str, Any]) -> bool:
    return event["type"] in TERMINAL_EVENTS or event["details"].get("outcome") == Status.FAILED


def run(sql: Sql, examples: int, steps: int, **options: Any) -> None:
    machine = type("Protocol", (Protocol,), {"sql": staticmethod(sql)})
    with override_settings(JOBREAPER=JOBREAPER):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                **options,
            ),
        )


def test_whatever_happens_the_rules_hold(sql: Sql) -> None:
    run(sql, examples=12, steps=30, derandomize=True)


@pytest.mark.slow
def test_whatever_happens_for_longer_the_rules_hold(sql: Sql) -> None:
    """Another walk on every run; a failure names the steps that repeat it."""
    run(sql, examples=30, steps=50, derandomize=False)
