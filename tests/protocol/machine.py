"""The machine of `test_state_machine.py`, without its workers."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
)

import jobreaper
from jobreaper import LeaseLost, control
from jobreaper.protocol.holding import holding_of
from jobreaper.reaper.dead_workers import give_back
from jobreaper.states import TERMINAL, EventType, Reason, Status
from jobreaper.tables import table_of
from project.media.models import Job
from tests.protocol.model import HOUR, STAGES, WORKERS, ModelJob, ModelLease, is_end
from tests.rows import Rows, Sql


class Machine(RuleBasedStateMachine):
    """What clients, time, the reaper and operators do, and what must be true after every step."""

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
        self.held: list[ModelLease] = []
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

    @rule(
        worker=st.sampled_from(WORKERS),
        reason=st.sampled_from([Reason.WORKER_LOST, Reason.WORKER_STOPPED]),
    )
    def worker_dies_in_sight_of_its_parent(self, worker: str, reason: Reason) -> None:
        held = {k: j for k, j in self.model.items() if j.running and j.locked_by == worker}
        taken = give_back(self.table, worker, "killed by SIGKILL", reason)
        assert {job.pk for job in taken} == set(held)
        for job in held.values():
            job.reap(self.now, reason)

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
    def each_lease_is_in_its_phase(self) -> None:
        for held in self.held:
            lease = held.lease
            # One whose time ran out by the local clock is lost when it is asked.
            assert (lease.lost, lease.closed, holding_of(lease).phase) == (
                held.lost,
                held.closed,
                held.phase,
            )
            if held.lost and not held.closed:
                with pytest.raises(LeaseLost):
                    lease.check()
            elif not held.lost:
                lease.check()

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
