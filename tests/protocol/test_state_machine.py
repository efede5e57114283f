"""Everything that workers, reapers and operators can do, in any order, against a plain model.

The model knows the rules of `jobreaper.policies` and nothing of SQL. After every step the table
must equal it, and hold the invariants that no model is needed for.

Time stands still between steps that move it: such a step shifts every timestamp of the table by
whole hours, and every length of time in the policies ends on half an hour. So no comparison is ever
close, however slow the machine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    multiple,
    rule,
    run_state_machine_as_test,
)

import jobreaper
from jobreaper import Lease, LeaseClosed, LeaseLost
from jobreaper.protocol.batch import Ending, Run, fail_group, finish_group, release_group
from jobreaper.protocol.heartbeat import beat
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.phases import Phase
from jobreaper.states import EventType
from project.media.models import Job
from tests.protocol.model import JOBREAPER, WORKERS, ModelLease
from tests.protocol.watched import MEANWHILE, Watched
from tests.rows import Sql

VERBS: dict[str, Callable[[Lease], object]] = {
    "finish": lambda lease: lease.finish(),
    "fail": lambda lease: lease.fail("E1", "went wrong"),
    "give up": lambda lease: lease.fail("E2", retry=False),
    "release": lambda lease: lease.release(),
}


class E1(Exception):
    """What the attempts of a group fail with."""


GROUP_VERBS: dict[str, Callable[[list[Run]], Ending]] = {
    "finish": finish_group,
    "fail": fail_group,
    "release": release_group,
}


class Protocol(Watched):
    """The rules. `sql` and `connect` are set by the test."""

    keys = Watched.keys
    leases = Watched.leases

    def _claimed(self, lease: Lease, worker: str) -> ModelLease:
        job = self.model[lease.pk]
        assert job.is_due(self.now)
        job.claim(worker, self.now)
        self.be_here(worker)
        assert lease.epoch == job.epoch
        assert lease.worker == worker
        held = ModelLease(lease, lease.pk, lease.epoch)
        self.held.append(held)
        return held

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

    @rule(key=keys, worker=st.sampled_from(WORKERS), meanwhile=MEANWHILE)
    def die_with_a_job_and_be_missed(self, key: int, worker: str, meanwhile: str) -> None:
        """These steps in a row, which by chance come together too seldom."""
        self.claim(key, worker)
        self.lose_connections(worker, dies=True)
        self.let_time_pass(1)
        self.watch(meanwhile)

    @rule(held=leases)
    def beat_one(self, held: ModelLease) -> None:
        if held.closed:
            with pytest.raises(LeaseClosed):
                held.lease.heartbeat()
            return
        if not held.lost:
            self._beaten(held)
        if held.lost:
            with pytest.raises(LeaseLost):
                held.lease.heartbeat()
        else:
            held.lease.heartbeat()

    @rule(chosen=st.lists(leases, min_size=1, max_size=4, unique_by=id))
    def beat_many(self, chosen: list[ModelLease]) -> None:
        chosen = [held for held in chosen if held.phase is Phase.HELD]
        found = beat(connection, self.table, [holding_of(held.lease) for held in chosen])
        for held, outcome in zip(chosen, found, strict=True):
            assert outcome.held == self.model[held.key].is_held_by(held)
            self._beaten(held)

    def _beaten(self, held: ModelLease) -> None:
        job = self.model[held.key]
        if job.is_held_by(held):
            job.beat(self.now)
        # A lease that ends with its deadline ends by the local clock too.
        if not job.is_held_by(held) or job.lease_from(self.now) < self.now:
            held.lose()

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
            self._rejected(held)
        else:
            act(held.lease)
            self._ended(held, verb)

    def _ended(self, held: ModelLease, verb: str) -> None:
        held.phase = Phase.ENDED
        self.model[held.key].end(verb, self.now)

    def _rejected(self, held: ModelLease) -> None:
        self.model[held.key].events.append(EventType.JOB_STALE_WRITE_REJECTED)
        held.lose()

    @rule(
        chosen=st.lists(leases, min_size=1, max_size=4, unique_by=id),
        verb=st.sampled_from(sorted(GROUP_VERBS)),
    )
    def end_many(self, chosen: list[ModelLease], verb: str) -> None:
        worker = chosen[0].lease.worker
        chosen = [held for held in chosen if held.lease.worker == worker]
        runs = [Run(held.lease, 0.0, error=E1()) for held in chosen]
        ending = GROUP_VERBS[verb](runs)
        for held, run in zip(chosen, runs, strict=True):
            if held.closed:
                assert run in ending.locked
            elif self.model[held.key].is_held_by(held):
                assert run in ending.ended
                self._ended(held, verb)
            else:
                assert run in ending.lost
                self._rejected(held)

    @rule(held=leases, verb=st.sampled_from(sorted(VERBS)), commits=st.booleans())
    def end_in_a_transaction(self, held: ModelLease, verb: str, commits: bool) -> None:
        if held.closed:
            return
        if not self.model[held.key].is_held_by(held):
            with pytest.raises(LeaseLost), transaction.atomic():
                VERBS[verb](held.lease)
            held.lose()
            return
        with transaction.atomic():
            VERBS[verb](held.lease)
            held.phase = Phase.CLOSING
            self.each_lease_is_in_its_phase()
            transaction.set_rollback(not commits)
        if commits:
            self._ended(held, verb)
        else:
            held.stand()

    @rule(held=leases, verb=st.sampled_from(sorted(VERBS)))
    def end_in_a_savepoint_that_is_rolled_back(self, held: ModelLease, verb: str) -> None:
        if held.closed or not self.model[held.key].is_held_by(held):
            return
        with transaction.atomic():
            with transaction.atomic():
                VERBS[verb](held.lease)
                transaction.set_rollback(True)
            self.each_lease_is_in_its_phase()

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
            held.lost = True
            held.phase = Phase.ENDED if held.closed else Phase.LOST


# So that the rules of presence, of which several have to come together, come often.
NOT_OF_PRESENCE = [
    "claim_next",
    "beat_many",
    "end_many",
    "end_in_a_transaction",
    "end_in_a_savepoint_that_is_rolled_back",
    "save_the_job",
    "run_by_a_worker_from_before_leases",
    "worker_dies_in_sight_of_its_parent",
    "fail_by_hand",
    "requeue_by_hand",
]


def run(
    sql: Sql, dsn: str, examples: int, steps: int, without: Sequence[str] = (), **options: Any
) -> None:
    parts = {
        "sql": staticmethod(sql),
        "connect": staticmethod(partial(psycopg.connect, dsn, autocommit=True)),
        **dict.fromkeys(without),
    }
    machine = type("Protocol", (Protocol,), parts)
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


def test_whatever_happens_the_rules_hold(sql: Sql, dsn: str) -> None:
    run(sql, dsn, examples=12, steps=30, derandomize=True)


def test_whatever_befalls_the_sessions_of_workers_the_rules_hold(sql: Sql, dsn: str) -> None:
    run(sql, dsn, examples=15, steps=30, without=NOT_OF_PRESENCE, derandomize=True)


@pytest.mark.slow
def test_whatever_happens_for_longer_the_rules_hold(sql: Sql, dsn: str) -> None:
    """Another walk on every run; a failure names the steps that repeat it."""
    run(sql, dsn, examples=30, steps=50, derandomize=False)
