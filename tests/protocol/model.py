"""The model of `test_state_machine.py`: what each row should say and each lease's phase should be.

It knows the rules of `jobreaper.policies`, and nothing of SQL, threads and clocks.
"""

from dataclasses import dataclass, field
from typing import Any

from jobreaper import Lease, conf, policies
from jobreaper.policies import StagePolicy
from jobreaper.protocol.phases import Phase
from jobreaper.states import EventType, Reason, Status
from tests import oracle
from tests.protocol.ways import TERMINAL_EVENTS

HOUR = 3600.0
GRACE_HOURS = 0.5

JOBREAPER = {
    "DEFAULT_LEASE_SEC": "90m",
    "JOB_RETRY_BACKOFF_MS_BASE": "30m",
    "JOB_RETRY_BACKOFF_MS_MAX": "30m",
    # The server of a test may be minutes old.
    "RECOVERY_GRACE_SEC": 0,
    "PRESENCE_GRACE_SEC": "30m",
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
        end = now + oracle.lease_seconds(self.policy, self.expected_duration_ms) / HOUR
        return end if self.deadline is None else min(end, self.deadline)

    def beat(self, now: float) -> None:
        self.beaten_at = now
        hours = oracle.lease_seconds(self.policy, self.expected_duration_ms) / HOUR
        self.lease_end = oracle.renewed_end(
            self.lease_end, now, hours, self.deadline, second=1 / HOUR
        )

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

    def end(self, verb: str, now: float) -> None:
        if verb == "finish":
            self.fail_code = None
            self.leave(Status.SUCCESS, EventType.JOB_FINISHED)
        elif verb == "release":
            self.attempts -= 1
            self.leave(Status.QUEUED, EventType.JOB_RELEASED)
        else:
            self.fail_code = "E1" if verb == "fail" else "E2"
            if verb == "fail" and not self.exhausted:
                self.run_at = now + self.backoff()
                self.leave(Status.QUEUED, EventType.JOB_RETRIED)
            else:
                self.leave(Status.FAILED, EventType.JOB_FAILED)

    def reap(self, now: float, reason: Reason) -> Status:
        verdict = oracle.verdict(
            self.policy,
            reason=reason,
            attempt_count=self.attempts,
            max_attempts=self.max_attempts,
            reap_count=self.reaps,
        )
        had_stopped = reason is Reason.WORKER_STOPPED
        if reason is Reason.WORKER_LOST or had_stopped:
            event = str(EventType.JOB_WORKER_LOST)
        elif verdict.fail_code is None:
            event = str(EventType.REAPER_REQUEUED)
        else:
            event = f"reaper:failed({verdict.fail_code})"
        if verdict.fail_code is None:
            first_loss = reason is Reason.WORKER_LOST and not self.reaps
            waits = not (first_loss or had_stopped)
            self.run_at = now + (self.backoff() if waits else 0)
        else:
            self.fail_code = verdict.fail_code
        self.attempts -= verdict.gives_attempt_back
        self.reaps += not had_stopped
        self.epoch += 1
        self.leave(verdict.status, event)
        return verdict.status


@dataclass
class ModelLease:
    """What a worker holds, and what it knows of it."""

    lease: Lease
    key: int
    epoch: int
    phase: Phase = Phase.HELD
    # A lost lease stays lost, also where it can still be ended.
    lost: bool = False

    @property
    def closed(self) -> bool:
        return self.phase in (Phase.CLOSING, Phase.ENDED)

    def lose(self) -> None:
        self.lost = True
        self.phase = Phase.LOST

    def stand(self) -> None:
        self.phase = Phase.LOST if self.lost else Phase.HELD


def is_end(event: dict[str, Any]) -> bool:
    return event["type"] in TERMINAL_EVENTS or event["details"].get("outcome") == Status.FAILED
