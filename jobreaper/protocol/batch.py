"""Many leases of one worker, taken by one statement and ended by another.

With a round trip and a commit for each job, these would take most of the time of quick jobs. With
batches, the work itself does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from jobreaper import conf, signals
from jobreaper.db import (
    array_of,
    fetch,
    in_transaction,
    is_elsewhere,
    may_be_a_rows_fault,
    no_retries,
    retrying,
)
from jobreaper.exceptions import LeaseLost
from jobreaper.identity import local_clock
from jobreaper.protocol import heartbeat, progress
from jobreaper.protocol.claim import take
from jobreaper.protocol.ending import (
    SIGNALS,
    Elsewhere,
    failure,
    forget_states,
    in_its_session,
    reject,
)
from jobreaper.protocol.holding import Holding, holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.protocol.outcome import account
from jobreaper.tables import JobTable


@dataclass(slots=True, eq=False)
class Run:
    """One attempt in this process. Times are seconds on the local clock."""

    lease: Lease
    claimed_at: float
    started_at: float = 0.0
    ended_at: float = 0.0
    error: BaseException | None = None
    # Whether there was a try to end it.
    tried: bool = False
    holding: Holding = field(init=False)

    def __post_init__(self) -> None:
        self.holding = holding_of(self.lease)

    def start(self) -> None:
        """Record that it starts now."""
        self.started_at = local_clock()
        self.holding.waited_ms = self.waited_ms

    @property
    def waited_ms(self) -> float:
        """How long it waited for its turn after the claim, or until now if it has not started."""
        return ((self.started_at or local_clock()) - self.claimed_at) * 1000

    @property
    def ran_ms(self) -> float:
        """How long it ran."""
        return (self.ended_at - self.started_at) * 1000


@dataclass
class Ending:
    """The result for a group of runs. ``locked`` have to be tried again: another transaction is in
    the way. ``refused`` are those whose end the database refuses to write: their heartbeats have
    ended, so their leases run out, and the reaper decides.
    """

    ended: list[Run] = field(default_factory=list)
    lost: list[Run] = field(default_factory=list)
    locked: list[Run] = field(default_factory=list)
    refused: list[Run] = field(default_factory=list)

    def add(self, other: Ending) -> None:
        """Add the result for others."""
        self.ended += other.ended
        self.lost += other.lost
        self.locked += other.locked
        self.refused += other.refused


def claim_group(
    table: JobTable,
    n: int,
    *,
    types: Iterable[str] | None = None,
    stages: Iterable[str] | None = None,
    queues: Iterable[str] | None = None,
) -> list[Run]:
    """Take the leases of at most ``n`` due jobs and renew them until they end."""
    claimed_at = local_clock()
    if types is not None and "type" not in table.extras:
        # What a type is in other tables.
        among = None if stages is None else {*stages}
        stages = [kind for kind in types if among is None or kind in among]
        types = None
    wanted = {
        "types": None if types is None else list(types),
        "stages": None if stages is None else list(stages),
        "queues": None if queues is None else list(queues),
    }
    leases = take(table, None, {"id": None, "n": n, **wanted})
    if leases:
        heartbeat.heart.add(*map(holding_of, leases))
        signals.jobs_claimed.send_robust(table.model, leases=leases)
        if signals.wanted_one_by_one(signals.job_claimed):
            for lease in leases:
                _tell(signals.job_claimed, lease)
    return [Run(lease, claimed_at) for lease in leases]


def finish_group(runs: Sequence[Run]) -> Ending:
    """Finish the jobs of ``runs``, each as ``Lease.finish()`` would."""
    return _end("finish", runs, _results)


def fail_group(runs: Sequence[Run]) -> Ending:
    """Fail the attempts ``runs``, each as ``Lease.fail()`` would, with its error."""
    return _end("fail", runs, _failures)


def release_group(runs: Sequence[Run]) -> Ending:
    """Give back the jobs of ``runs``, none of which has started, as ``Lease.release()`` would."""
    return _end("release", runs)


def withdraw_group(runs: Sequence[Run]) -> Ending:
    """Give back the jobs of ``runs``, whose functions may still be running. As with
    ``Lease.release()``, the attempts are not counted; the epochs increase, so that those functions
    cannot save the jobs.
    """
    return _end("withdraw", runs)


def _results(runs: Sequence[Run]) -> dict[str, Any]:
    results = [(run.holding.key, run.holding.result) for run in runs if run.holding.result]
    # Each is JSON already.
    return {"results": f"{{{','.join(f'{json.dumps(str(key))}:{text}' for key, text in results)}}}"}


def _failures(runs: Sequence[Run]) -> dict[str, Any]:
    failures = [failure(run.error) for run in runs if run.error is not None]
    accounts = [account(run.error) for run in runs if run.error is not None]
    return {
        "fail_codes": [code for code, _ in failures],
        "fail_reasons": [reason for _, reason in failures],
        "exceptions": [told["exception"] for told in accounts],
        "tracebacks": [told["traceback"] for told in accounts],
        "retry": True,
        "delay_sec": None,
        "policies": conf.settings().policies_json,
    }


Params = Callable[[Sequence[Run]], Mapping[str, Any]]


def _end(verb: str, runs: Sequence[Run], params: Params = lambda _: {}) -> Ending:
    ending = Ending()
    ready: dict[Any, Run] = {}
    others = []
    try:
        for run in runs:
            if run.holding.key in ready or run.holding.session != runs[0].holding.session:
                # A lost lease of a job that was claimed again: a statement distinguishes jobs by
                # key. Or of a job in another session.
                others.append(run)
            elif run.holding.begin_to_end():
                ready[run.holding.key] = run
            else:
                # Another thread is ending it or has ended it.
                ending.locked.append(run)
        superseded = [run for run in ready.values() if run.holding.is_superseded]
        for run in superseded:
            # The statement would end the later lease.
            _reject(verb, run, ending)
        if left := [run for run in ready.values() if run not in superseded]:
            _write(verb, left, params, ending)
    finally:
        for run in ready.values():
            run.holding.not_ended()
    if others:
        ending.add(_end(verb, others, params))
    return ending


def _reject(verb: str, run: Run, ending: Ending, tried: bool = False) -> dict[str, Any] | None:
    holding = run.holding
    connection = holding.table.connection(holding.alias)
    try:
        return in_its_session(holding, connection, lambda: reject(holding, connection, verb, tried))
    except LeaseLost:
        ending.lost.append(run)
        return None


def _write(verb: str, runs: list[Run], params: Params, ending: Ending) -> None:
    """End ``runs`` with one statement. If the database refuses it, a row may be the reason: then
    each half is ended with its own statement.

    Raises:
        django.db.Error: none of the rows is the reason.
    """
    holding = runs[0].holding
    connection = holding.table.connection(holding.alias)
    try:
        _send(verb, runs, params, ending)
    except DatabaseError as error:
        if not _may_end_others(connection, verb, runs, params):
            raise
        with no_retries():
            if len(runs) > 1:
                half = len(runs) // 2
                _write(verb, runs[:half], params, ending)
                _write(verb, runs[half:], params, ending)
            elif may_be_a_rows_fault(connection, error):
                let_go(verb, runs[0], error)
                ending.refused += runs
            else:
                ending.locked += runs


def _may_end_others(
    connection: BaseDatabaseWrapper, verb: str, runs: list[Run], params: Params
) -> bool:
    """Return whether the statement that failed for ``runs`` succeeds for no runs. Otherwise, the
    reason is the table, or the database is down. The error has broken a transaction of the caller.
    """
    if in_transaction(connection):
        return False
    table = runs[0].holding.table
    statement, nobody = table.statement(f"{verb}_many"), _values(verb, runs, params) | _NOBODY
    try:
        retrying(connection, lambda _: fetch(connection, statement, nobody))
    except DatabaseError:
        return False
    return True


def let_go(verb: str, run: Run, error: DatabaseError) -> None:
    """Stop renewing a run whose end the database refuses to write, and announce it."""
    heartbeat.heart.remove(run.holding)
    signals.ending_refused.send_robust(
        run.holding.table.model, lease=run.lease, verb=verb, error=error
    )


def _values(verb: str, runs: list[Run], params: Params) -> dict[str, Any]:
    return {
        **params(runs),
        "ids": array_of(run.holding.key for run in runs),
        "epochs": array_of(run.holding.epoch for run in runs),
        "worker": runs[0].holding.worker,
        "waited_ms": array_of(run.waited_ms for run in runs),
        "ran_ms": array_of(run.ran_ms for run in runs),
        "session": runs[0].holding.session,
        "reports": progress.last_reports([run.holding for run in runs]),
        "details": verb != "finish" or signals.wanted_one_by_one(signals.job_finished),
    }


# This turns them into the values of a statement for no lease.
_NOBODY: Final = dict.fromkeys(("ids", "epochs", "waited_ms", "ran_ms"), "{}")


def _send(verb: str, runs: list[Run], params_of: Params, ending: Ending) -> None:
    holding = runs[0].holding
    table = holding.table
    connection = table.connection(holding.alias)
    params = _values(verb, runs, params_of)
    announced = params["details"]
    tried = False

    def send(tried_before: bool) -> list[tuple[Any, ...]]:
        nonlocal tried
        tried = tried_before
        return in_its_session(holding, connection, send_there)

    def send_there() -> list[tuple[Any, ...]]:
        rows = fetch(connection, table.statement(f"{verb}_many"), params)
        is_all = all(event is not None for _, _, event in rows)
        if not is_all and is_elsewhere(connection, holding.session):
            raise Elsewhere
        return rows

    events = {}
    left_out = {}
    for pk, held, event in retrying(connection, send):
        if event is None:
            left_out[pk] = held
        else:
            events[pk] = json.loads(event)
    by_key = {str(run.holding.pk): run for run in runs} if left_out else {}
    left = [(run, pk) for pk, run in by_key.items() if pk in left_out]
    ended = [run for pk, run in by_key.items() if pk not in left_out] if left else [*runs]
    # Before anything else is sent: these have ended, whatever becomes of the others.
    _note_ended(verb, ended, ending)
    carried_out = []
    for run, pk in left:
        if left_out[pk]:
            ending.locked.append(run)
        elif event := _reject(verb, run, ending, tried):
            events[pk] = event
            carried_out.append(run)
    _note_ended(verb, carried_out, ending)
    ended += carried_out
    if verb == "finish" and ended:
        forget_states(connection, [run.holding for run in ended])
        signals.jobs_finished.send_robust(table.model, leases=[run.lease for run in ended])
    for run in ended if announced else ():
        event = events[str(run.holding.pk)]
        with run.holding.failing_by(run.error):
            _tell(SIGNALS[event["type"]], run.lease, details=event["details"])


def _note_ended(verb: str, runs: Sequence[Run], ending: Ending) -> None:
    for run in runs:
        run.holding.ended(verb)
    ending.ended += runs
    heartbeat.heart.remove(*(run.holding for run in runs))


def _tell(signal: Signal, lease: Lease, **arguments: Any) -> None:
    # The batch is already logged.
    holding = holding_of(lease)
    holding.in_batch = signal in (signals.job_claimed, signals.job_finished)
    signal.send_robust(holding.table.model, lease=lease, **arguments)
    holding.in_batch = False
