"""The phases of a lease: what changes them, what does not, and who is told."""

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

import jobreaper
from jobreaper import Lease, LeaseClosed, LeaseLost, claim, signals
from jobreaper.identity import local_clock
from jobreaper.protocol import ending
from jobreaper.protocol.batch import Run, finish_group
from jobreaper.protocol.heartbeat import Heart, beat
from jobreaper.protocol.holding import Beat, Holding, holding_of
from jobreaper.protocol.phases import TRANSITIONS, Phase
from jobreaper.states import Status
from jobreaper.tables import table_of
from project.media.models import Job
from tests.docs import markdown
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql, ago

HELD, ENDING, CLOSING, ENDED, LOST = Phase

GONE = Beat(held=False, remaining_sec=None, expires_at=None, status="queued", epoch=9)
NOT_THERE = Beat(held=False, remaining_sec=None, expires_at=None, status=None, epoch=None)
LOCKED = Beat(held=True, remaining_sec=None, expires_at=None, status=Status.PROCESSING, epoch=1)


@pytest.fixture
def lease(jobs: Rows) -> Lease:
    lease = claim(Job, jobs.plant(), worker="w1")
    assert lease is not None
    return lease


@pytest.fixture
def rivals(sql: Sql) -> Iterator[Rivals]:
    with Rivals(sql) as rivals:
        yield rivals


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The reasons of the losses that were announced."""
    reasons: list[str] = []

    def note(reason: str, **_: Any) -> None:
        reasons.append(reason)

    signals.lease_lost.connect(note)
    yield reasons
    signals.lease_lost.disconnect(note)


@pytest.fixture
def holding() -> Holding:
    """A lease that no database knows of."""
    holding = Holding(
        table_of(Job),
        "default",
        Job(pk=1, lease_epoch=1, lease_expires_at=timezone.now()),
        worker="w1",
        key=1,
        claimed_at=local_clock(),
        length_sec=300.0,
    )
    Lease(holding)
    holding.claim_committed()
    return holding


def let_it_run_out(holding: Holding) -> None:
    """Let the local clock say that it must have run out."""
    holding._runs_out_at = 0.0


def close(holding: Holding) -> None:
    holding.begin_to_end()
    holding.ended_if_committed("finish")


def end(holding: Holding) -> None:
    holding.begin_to_end()
    holding.ended("finish")


def ask_when_it_is_over(holding: Holding) -> None:
    let_it_run_out(holding)
    holding.is_lost()


EVENTS: dict[str, tuple[Callable[[Holding], object], dict[Phase, Phase]]] = {
    "a verb begins": (lambda h: h.begin_to_end(), {HELD: ENDING, LOST: ENDING}),
    "a verb ended nothing": (lambda h: h.not_ended(), {ENDING: HELD}),
    "a verb ended it": (lambda h: h.ended("finish"), {ENDING: ENDED, CLOSING: ENDED}),
    "ended, not committed": (lambda h: h.ended_if_committed("fail"), {ENDING: CLOSING}),
    "the end is rolled back": (lambda h: h.end_undone(), {CLOSING: HELD}),
    "a verb was rejected": (
        lambda h: h.rejected("finish", "queued", 2),
        {HELD: LOST, ENDING: LOST, CLOSING: LOST},
    ),
    "a beat found it": (lambda h: h.beaten(LOCKED, 0.0), {}),
    "a beat found it gone": (lambda h: h.beaten(GONE, 0.0), {HELD: LOST}),
    "a beat found no row": (lambda h: h.beaten(NOT_THERE, 0.0), {HELD: LOST}),
    "a beat failed": (lambda h: h.missed("no route"), {}),
    "asked, and the time is not over": (lambda h: h.is_lost(), {}),
    "asked, and the time is over": (ask_when_it_is_over, {HELD: LOST}),
}

REACH: dict[Phase, Callable[[Holding], object]] = {
    HELD: lambda h: None,
    ENDING: lambda h: h.begin_to_end(),
    CLOSING: close,
    ENDED: end,
    LOST: lambda h: h.beaten(GONE, 0.0),
}


@pytest.mark.parametrize(("name", "phase"), list(itertools.product(EVENTS, Phase)), ids=str)
def test_each_event_leads_from_each_phase_where_the_table_says_and_nowhere_else(
    name: str, phase: Phase, holding: Holding
) -> None:
    happens, leads = EVENTS[name]
    REACH[phase](holding)
    assert holding.phase is phase
    happens(holding)
    assert holding.phase is leads.get(phase, phase)
    assert holding.phase is phase or holding.phase in TRANSITIONS[phase]


def test_a_verb_that_failed_on_a_lost_lease_leaves_it_lost(holding: Holding) -> None:
    ask_when_it_is_over(holding)
    assert holding.phase is LOST
    holding.begin_to_end()
    holding.not_ended()
    assert holding.phase is LOST


def test_a_lease_whose_time_ran_out_under_a_verb_is_ended_by_it(holding: Holding) -> None:
    holding.begin_to_end()
    ask_when_it_is_over(holding)
    assert holding.phase is ENDING
    holding.ended("finish")
    assert (holding.phase, holding.is_lost()) == (ENDED, True)


def test_what_only_answers_sends_no_signal_and_check_sends_one(
    holding: Holding, told: list[str]
) -> None:
    let_it_run_out(holding)
    assert holding.lease.lost
    assert not holding.lease.closed
    assert told == []
    for _ in range(2):
        with pytest.raises(LeaseLost):
            holding.lease.check()
    assert told == ["clock"]


def test_the_block_tells_of_a_loss_that_nobody_was_told_of(lease: Lease, told: list[str]) -> None:
    with lease:
        let_it_run_out(holding_of(lease))
        assert lease.lost
    assert told == ["clock"]


def test_the_heartbeat_tells_of_a_loss_that_somebody_only_asked_for(
    holding: Holding, told: list[str]
) -> None:
    ask_when_it_is_over(holding)
    Heart()._beat([holding])
    assert told == ["clock"]
    assert not holding.wants_beats


def test_a_lease_that_was_said_to_be_lost_is_not_renewed_any_more(lease: Lease) -> None:
    holding = holding_of(lease)
    let_it_run_out(holding)
    assert lease.lost
    beat(connection, table_of(Job), [holding])
    assert lease.lost


def test_a_beat_that_still_finds_a_lease_keeps_it_where_nobody_has_asked(lease: Lease) -> None:
    holding = holding_of(lease)
    let_it_run_out(holding)
    beat(connection, table_of(Job), [holding])
    assert not lease.lost


def test_every_thread_gets_the_same_answer_about_an_end_that_is_not_committed(
    lease: Lease, rivals: Rivals
) -> None:
    with transaction.atomic():
        lease.finish()
        answers = [lease.closed, rivals.start(lambda: lease.closed).result()]
        with pytest.raises(LeaseClosed):
            rivals.start(lease.release).result()
        transaction.set_rollback(True)
    assert answers == [True, True]
    assert not rivals.start(lambda: lease.closed).result()
    rivals.start(lease.release).result()


def test_a_second_verb_is_refused_while_one_is_on_its_way(
    lease: Lease, jobs: Rows, rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ending.send

    def meanwhile(*args: Any) -> Any:
        with pytest.raises(LeaseClosed, match="is ending it in another thread"):
            rivals.start(lambda: lease.fail("E1")).result()
        assert finish_group([run]).locked == [run]
        return send(*args)

    run = Run(lease, 0.0)
    monkeypatch.setattr(ending, "send", meanwhile)
    lease.finish()
    assert jobs.event_types(lease.pk) == ["job:finished"]


def test_an_end_that_the_connection_takes_along_is_undone(lease: Lease) -> None:
    def lose_the_connection() -> None:
        with transaction.atomic():
            lease.finish()
            connection.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lose_the_connection()
    assert not lease.closed
    lease.finish()


def test_two_leases_of_one_job_in_a_group_are_each_told_their_own_truth(jobs: Rows) -> None:
    key = jobs.plant()
    old = claim(Job, key, worker="w1")
    jobs.set(key, lease_expires_at=ago(1))
    jobreaper.reap([Job])
    jobs.set(key, next_earliest_run_at=ago(1))
    new = claim(Job, key, worker="w1")
    assert old is not None
    assert new is not None
    runs = [Run(old, 0.0), Run(new, 0.0)]
    group = finish_group(runs)
    assert (group.lost, group.ended) == (runs[:1], runs[1:])


def test_after_a_claim_that_was_not_committed_in_time_the_words_are_true(jobs: Rows) -> None:
    with transaction.atomic():
        lease = claim(Job, jobs.plant())
        assert lease is not None
        let_it_run_out(holding_of(lease))
        with pytest.raises(LeaseLost, match="its claim was not committed in time"):
            lease.check()


def test_after_beats_that_failed_the_loss_says_why(holding: Holding) -> None:
    holding.missed("no route to host")
    let_it_run_out(holding)
    with pytest.raises(LeaseLost, match=r"ran out while heartbeats failed \(no route to host\)"):
        holding.lease.check()


def test_users_see_of_a_lease_what_the_docs_list_and_no_more(holding: Holding) -> None:
    lease = holding.lease
    section = markdown.section(markdown.page("api"), "Lease")
    documented = {markdown.code(row[0])[0].split("(")[0] for row in markdown.rows(section)}
    [for_coroutines] = re.findall(r"In a coroutine, use (.*?) in place", section, re.DOTALL)
    documented |= set(re.findall(r"`(\w+)\(\)`", for_coroutines))
    assert documented == {name for name in dir(lease) if not name.startswith("_")}
    with pytest.raises(AttributeError):
        lease.anything = 1


def test_another_thread_may_ask_at_any_moment_of_a_rollback(lease: Lease) -> None:
    """It never sees an open lease before the end is undone, nor a closed one after."""
    stop = threading.Event()
    seen: list[bool] = []

    def ask() -> None:
        while not stop.is_set():
            seen.append(lease.closed)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(20):
            with transaction.atomic():
                lease.finish()
                transaction.set_rollback(True)
            assert not lease.closed
    finally:
        stop.set()
        asking.join()
    lease.finish()
    assert True in seen
