"""Many leases of one worker, taken by one statement and ended by another.

A round trip and a commit for each job would set the pace of quick ones; here it is the database's
and the handlers' work that does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.dispatch import Signal

from jobreaper import conf, heartbeat, signals
from jobreaper.claims import take
from jobreaper.db import fetch, retrying
from jobreaper.exceptions import LeaseLost
from jobreaper.leases import ENDINGS, Lease, failure
from jobreaper.tables import JobTable
from jobreaper.worker import local_clock


@dataclass(slots=True, eq=False)
class Run:
    """One attempt in this process. Moments are seconds of the local clock."""

    lease: Lease
    claimed_at: float
    started_at: float = 0.0
    ended_at: float = 0.0
    error: BaseException | None = None
    # Whether it was tried to end it.
    tried: bool = False

    @property
    def waited_ms(self) -> float:
        """How long it waited for its turn after the claim, until now where it has not started."""
        return ((self.started_at or local_clock()) - self.claimed_at) * 1000

    @property
    def ran_ms(self) -> float:
        """How long it ran."""
        return (self.ended_at - self.started_at) * 1000


@dataclass
class Ending:
    """What became of a group of runs. ``locked`` are to be tried again: some other transaction has
    locked their row.
    """

    ended: list[Run] = field(default_factory=list)
    lost: list[Run] = field(default_factory=list)
    locked: list[Run] = field(default_factory=list)


def claim_group(
    table: JobTable,
    n: int,
    *,
    types: Iterable[str] | None = None,
    stages: Iterable[str] | None = None,
) -> list[Run]:
    """Take the leases of at most ``n`` due jobs and beat them until they are ended."""
    claimed_at = local_clock()
    wanted = {
        "types": None if types is None else list(types),
        "stages": None if stages is None else list(stages),
    }
    leases = take(table, None, {"id": None, "n": n, **wanted})
    if leases:
        heartbeat.heart.add(*leases)
        signals.jobs_claimed.send_robust(table.model, leases=leases)
        if signals.wanted_one_by_one(signals.job_claimed):
            for lease in leases:
                _tell(signals.job_claimed, lease)
    return [Run(lease, claimed_at) for lease in leases]


def finish_group(runs: Sequence[Run]) -> Ending:
    """Finish the jobs of ``runs``, each as ``Lease.finish()`` would."""
    ending = _end("finish", runs)
    if ending.ended:
        leases = [run.lease for run in ending.ended]
        signals.jobs_finished.send_robust(leases[0].table.model, leases=leases)
    return ending


def fail_group(runs: Sequence[Run]) -> Ending:
    """Fail the attempts ``runs``, each as ``Lease.fail()`` would with its error."""
    failures = [failure(run.error) for run in runs if run.error is not None]
    errors = {
        "fail_codes": [code for code, _ in failures],
        "fail_reasons": [reason for _, reason in failures],
        "retry": True,
        "delay_sec": None,
        "policies": conf.settings().policies_json,
    }
    return _end("fail", runs, errors)


def release_group(runs: Sequence[Run]) -> Ending:
    """Give the jobs of ``runs``, none of which has started, back as ``Lease.release()`` would."""
    return _end("release", runs)


def _end(
    verb: str, runs: Sequence[Run], params: Mapping[str, Any] = MappingProxyType({})
) -> Ending:
    for run in runs:
        run.lease.ending = True
    try:
        return _send(verb, runs, params) if runs else Ending()
    finally:
        for run in runs:
            run.lease.ending = False


def _send(verb: str, runs: Sequence[Run], params: Mapping[str, Any]) -> Ending:
    ending = Ending()
    table, alias = runs[0].lease.table, runs[0].lease.alias
    connection = table.connection(alias)
    announced = verb != "finish" or signals.wanted_one_by_one(signals.job_finished)
    params = {
        **params,
        "ids": _array(run.lease.key for run in runs),
        "epochs": _array(run.lease.epoch for run in runs),
        "worker": runs[0].lease.worker,
        "waited_ms": _array(run.waited_ms for run in runs),
        "ran_ms": _array(run.ran_ms for run in runs),
        "details": announced,
    }
    tried = False

    def send(tried_before: bool) -> list[tuple[Any, ...]]:
        nonlocal tried
        tried = tried_before
        return fetch(connection, table.statement(f"{verb}_many"), params)

    events = {}
    left_out = {}
    for pk, held, event in retrying(connection, send):
        if event is None:
            left_out[pk] = held
        else:
            events[pk] = json.loads(event)
    if not left_out:
        ending.ended += runs
    for run in runs if left_out else ():
        pk = str(run.lease.pk)
        held = left_out.get(pk)
        if held:
            ending.locked.append(run)
            continue
        try:
            if held is not None:
                event = run.lease.rejected(connection, verb, tried)
                if announced:
                    events[pk] = event
            ending.ended.append(run)
        except LeaseLost:
            ending.lost.append(run)
    for run in ending.ended:
        run.lease.ended()
    heartbeat.heart.remove(*(run.lease for run in (*ending.ended, *ending.lost)))
    for run in ending.ended if announced else ():
        event = events[str(run.lease.pk)]
        _tell(ENDINGS[event["type"]], run.lease, details=event["details"])
    return ending


def _tell(signal: Signal, lease: Lease, **arguments: Any) -> None:
    # The log has been told of the batch.
    lease.in_batch = signal in (signals.job_claimed, signals.job_finished)
    signal.send_robust(lease.table.model, lease=lease, **arguments)
    lease.in_batch = False


def _array(values: Iterable[UUID | float]) -> str:
    # As psycopg would write it, in a tenth of the time: these need no quotes.
    return f"{{{','.join(map(str, values))}}}"
