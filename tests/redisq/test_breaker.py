"""The circuit breaker against a model of it, and its rules one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobreaper.redisq import signals
from jobreaper.redisq.breaker import PARTS, Breaker, BreakerState, Ticket

WINDOW, COOLDOWN, SAMPLES, THRESHOLD = 60.0, 30.0, 4, 0.5
CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def heard() -> Iterator[list[tuple[BreakerState, BreakerState]]]:
    """The changes that are announced in the block."""
    changes: list[tuple[BreakerState, BreakerState]] = []

    def note(before: BreakerState, state: BreakerState, **_: Any) -> None:
        changes.append((before, state))

    signals.breaker_changed.connect(note)
    try:
        yield changes
    finally:
        signals.breaker_changed.disconnect(note)


def make(clock: Clock) -> Breaker:
    return Breaker(
        "queue",
        failure_threshold=THRESHOLD,
        window=WINDOW,
        cooldown=COOLDOWN,
        min_samples=SAMPLES,
        clock=clock,
    )


@dataclass
class Admitted:
    """A run that was let through, and which period of the model it belongs to."""

    ticket: Ticket
    period: int


class Model(RuleBasedStateMachine):
    """The rules as the documentation has them, with every outcome kept."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = make(self.clock)
        self.state = CLOSED
        self.since = self.clock.now
        self.outcomes: list[tuple[float, bool]] = []
        self.trial = False
        self.period = 0
        self.running: list[Admitted] = []

    def become(self, state: BreakerState) -> None:
        self.state, self.since, self.trial = state, self.clock.now, False
        self.outcomes = []
        self.period += 1

    # Whole parts of the window, so that the model needs no parts.
    @rule(parts=st.sampled_from([1, 3, PARTS // 2, PARTS + 1]))
    def time_passes(self, parts: int) -> None:
        self.clock.now += parts * WINDOW / PARTS

    @rule()
    def a_job_is_asked_for(self) -> None:
        if self.state is OPEN and self.clock.now - self.since >= COOLDOWN:
            self.become(HALF_OPEN)
        expected = self.state is CLOSED or (self.state is HALF_OPEN and not self.trial)
        ticket = self.breaker.admit()
        assert (ticket is not None) == expected
        if ticket is not None:
            self.trial = self.state is HALF_OPEN
            self.running.append(Admitted(ticket, self.period))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans())
    def a_run_ends(self, data: st.DataObject, failed: bool) -> None:
        run = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.breaker.record(run.ticket, failed=failed)
        if run.period != self.period:
            return
        if self.state is HALF_OPEN:
            self.become(OPEN if failed else CLOSED)
        elif self.state is CLOSED:
            self.outcomes.append((self.clock.now, failed))
            recent = [bad for at, bad in self.outcomes if self.clock.now - at <= WINDOW]
            if failed and len(recent) >= SAMPLES and sum(recent) / len(recent) >= THRESHOLD:
                self.become(OPEN)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_run_says_nothing(self, data: st.DataObject) -> None:
        run = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.breaker.cancel(run.ticket)
        if run.period == self.period:
            self.trial = False

    @invariant()
    def both_agree(self) -> None:
        assert self.breaker.state is self.state

    @invariant()
    def half_open_lets_one_run(self) -> None:
        if self.state is HALF_OPEN:
            assert sum(run.period == self.period for run in self.running) <= 1


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=50)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return make(clock)


def run(breaker: Breaker, *, failed: bool) -> None:
    ticket = breaker.admit()
    assert ticket is not None
    breaker.record(ticket, failed=failed)


def open_up(breaker: Breaker) -> None:
    for _ in range(SAMPLES):
        run(breaker, failed=True)
    assert breaker.state is OPEN


def test_a_few_failures_are_no_sample(breaker: Breaker) -> None:
    for _ in range(SAMPLES - 1):
        run(breaker, failed=True)
    assert breaker.state is CLOSED


def test_a_share_below_the_threshold_keeps_it_closed_however_many_fail(breaker: Breaker) -> None:
    for _ in range(200):
        run(breaker, failed=False)
        run(breaker, failed=False)
        run(breaker, failed=True)
    assert breaker.state is CLOSED


def test_old_failures_are_forgotten(breaker: Breaker, clock: Clock) -> None:
    for _ in range(20):
        run(breaker, failed=True)
        clock.now += WINDOW / (SAMPLES - 1) + 1
    assert breaker.state is CLOSED


def test_from_open_over_half_open_to_closed(breaker: Breaker, clock: Clock) -> None:
    with heard() as changes:
        open_up(breaker)
        clock.now += COOLDOWN - 1
        assert breaker.admit() is None
        clock.now += 1
        run(breaker, failed=False)
        assert breaker.state is CLOSED
    assert changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]


def test_a_failed_trial_opens_it_for_another_cooldown(breaker: Breaker, clock: Clock) -> None:
    open_up(breaker)
    clock.now += COOLDOWN
    run(breaker, failed=True)
    assert breaker.state is OPEN
    clock.now += COOLDOWN - 1
    assert breaker.admit() is None
    clock.now += 1
    assert breaker.admit() is not None


def test_a_run_from_before_does_not_decide_the_trial(breaker: Breaker, clock: Clock) -> None:
    early = breaker.admit()
    assert early is not None
    open_up(breaker)
    clock.now += COOLDOWN
    assert breaker.admit() is not None
    breaker.record(early, failed=False)
    assert breaker.state is HALF_OPEN


def test_a_trial_without_a_job_leaves_room_for_another(breaker: Breaker, clock: Clock) -> None:
    open_up(breaker)
    clock.now += COOLDOWN
    for _ in range(3):
        ticket = breaker.admit()
        assert ticket is not None
        assert breaker.admit() is None
        breaker.cancel(ticket)


def test_a_busy_queue_takes_no_more_room_than_an_idle_one(breaker: Breaker, clock: Clock) -> None:
    for _ in range(20_000):
        run(breaker, failed=False)
        clock.now += WINDOW / 10_000
    assert len(breaker._parts) <= PARTS + 1
