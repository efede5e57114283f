"""Ways into the protocol. `test_promises.py` holds each of them to the same promises.

To put another one to the test, such as an adopted table, the SQL functions or a Redis queue, write
one adapter and add it to `WAYS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

from django.db import models

import jobreaper
from jobreaper import Lease, LeaseLost, NotClaimed, control, register
from jobreaper.models import Job
from jobreaper.protocol.batch import Run, claim_group, finish_group, release_group
from jobreaper.protocol.holding import holding_of
from jobreaper.tables import adoption, table_of
from project.media import models as media
from tests.rows import Rows, Sql, ago
from tests.tables import errands


class JobState(NamedTuple):
    """What a promise can be about, whatever keeps the job."""

    status: str
    locked_by: str | None
    epoch: int
    attempt_count: int


class Way(ABC):
    """One way in. A `key` names a job, a `held` is what a claim gave to a worker.

    A worker's verb returns whether it was accepted: ``False`` means that the worker was told that
    its lease is lost.
    """

    # Whether an epoch fences writes; the Redis queue has another fence.
    has_epochs = True
    # Whether a job whose worker was lost waits before the next attempt.
    lost_jobs_wait = True

    @abstractmethod
    def add(self, *, max_attempts: int = 3) -> Any:
        """Add a job that is due, and return its key."""

    @abstractmethod
    def claim(self, key: Any, worker: str) -> Any | None: ...

    @abstractmethod
    def beat(self, held: Any) -> bool: ...

    @abstractmethod
    def finish(self, held: Any) -> bool: ...

    @abstractmethod
    def fail(self, held: Any) -> bool: ...

    @abstractmethod
    def release(self, held: Any) -> bool: ...

    @abstractmethod
    def reap(self) -> dict[Any, str]:
        """Run a pass; return "requeued" or "failed" for each job that it took."""

    @abstractmethod
    def cancel(self, key: Any) -> None:
        """Cancel by hand."""

    @abstractmethod
    def requeue(self, key: Any) -> None:
        """Requeue by hand."""

    @abstractmethod
    def state(self, key: Any) -> JobState: ...

    @abstractmethod
    def rejections(self, key: Any) -> list[str]:
        """Return the verbs that were rejected, as they are on record."""

    @abstractmethod
    def endings(self, key: Any) -> int:
        """Return how often the record says that the job reached a terminal status."""

    @abstractmethod
    def let_time_pass(self, key: Any, seconds: float) -> None: ...

    @abstractmethod
    def lapse(self, key: Any) -> None:
        """Let the lease run out a moment ago."""

    @abstractmethod
    def make_due(self, key: Any) -> None:
        """Let the backoff be over."""

    @abstractmethod
    def give_to(self, key: Any, worker: str) -> None:
        """Let another worker hold the job under the same epoch, as after a failover to a standby
        that had not heard of the first claim.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Let go of what dead workers still hold in this process."""


TERMINAL_EVENTS = (
    "job:finished",
    "job:failed",
    "job:cancelled",
    "reaper:failed(timeout)",
    "reaper:failed(poison)",
    "reaper:failed(deadline)",
    "admin:failed",
    "admin:cancelled",
)


class TableWay(Way):
    """What all ways to a `LeasedJob`'s table have in common."""

    def __init__(self, sql: Sql, model: type[models.Model]) -> None:
        self.model = model
        self.rows = Rows(sql, model._meta.db_table)

    def add(self, *, max_attempts: int = 3) -> Any:
        return self.rows.plant(max_attempts=max_attempts)

    def reap(self) -> dict[Any, str]:
        result = jobreaper.reap([self.model])
        assert result.all_errors == []
        table = self.rows.table
        return {
            **dict.fromkeys(result.requeued_ids[table], "requeued"),
            **dict.fromkeys(result.failed_ids[table], "failed"),
        }

    def cancel(self, key: Any) -> None:
        assert control.cancel(self.model, [key], by="ann") == [key]

    def requeue(self, key: Any) -> None:
        assert control.requeue(self.model, [key], by="ann") == [key]

    def state(self, key: Any) -> JobState:
        row = self.rows.row(key)
        return JobState(row["status"], row["locked_by"], row["lease_epoch"], row["attempt_count"])

    def rejections(self, key: Any) -> list[str]:
        rejected = "job:stale_write_rejected"
        events = self.rows.events(key)
        return [event["details"]["verb"] for event in events if event["type"] == rejected]

    def endings(self, key: Any) -> int:
        return sum(type in TERMINAL_EVENTS for type in self.rows.event_types(key))

    def let_time_pass(self, key: Any, seconds: float) -> None:
        self.rows.let_time_pass(key, seconds)

    def lapse(self, key: Any) -> None:
        self.rows.set(key, lease_expires_at=ago(1))

    def make_due(self, key: Any) -> None:
        self.rows.set(key, next_earliest_run_at=ago(1))

    def give_to(self, key: Any, worker: str) -> None:
        self.rows.set(key, locked_by=worker)


def accepted(verb: Callable[[], object]) -> bool:
    try:
        verb()
    except LeaseLost:
        return False
    return True


class Verbs(TableWay):
    """`claim()` and the lease's verbs, one by one."""

    def claim(self, key: Any, worker: str) -> Lease | None:
        return jobreaper.claim(self.model, key, worker=worker)

    def beat(self, held: Lease) -> bool:
        return accepted(held.heartbeat)

    def finish(self, held: Lease) -> bool:
        return accepted(held.finish)

    def fail(self, held: Lease) -> bool:
        return accepted(lambda: held.fail("E1", "went wrong"))

    def release(self, held: Lease) -> bool:
        return accepted(held.release)


class ClaimNext(Verbs):
    """`claim_next()` in place of `claim()`."""

    def claim(self, key: Any, worker: str) -> Lease | None:
        leases = jobreaper.claim_next(self.model, worker=worker)
        return leases[0] if leases else None


class Groups(Verbs):
    """Groups of leases, as `manage.py work` takes and ends them; here of one job each."""

    def claim(self, key: Any, worker: str) -> Run | None:  # type: ignore[override]
        runs = claim_group(table_of(self.model), 1)
        return runs[0] if runs else None

    def beat(self, held: Run) -> bool:  # type: ignore[override]
        return super().beat(held.lease)

    def finish(self, held: Run) -> bool:  # type: ignore[override]
        return held in finish_group([held]).ended

    def fail(self, held: Run) -> bool:  # type: ignore[override]
        return super().fail(held.lease)

    def release(self, held: Run) -> bool:  # type: ignore[override]
        return held in release_group([held]).ended


class Held(NamedTuple):
    block: AbstractContextManager[Lease]
    lease: Lease


class Hold(TableWay):
    """`with hold(...)`: how the block is left is the verb."""

    def __init__(self, sql: Sql, model: type[models.Model]) -> None:
        super().__init__(sql, model)
        self.entered: list[Held] = []

    def claim(self, key: Any, worker: str) -> Held | None:
        block = jobreaper.hold(self.model, key, worker=worker)
        try:
            held = Held(block, block.__enter__())
        except NotClaimed:
            return None
        self.entered.append(held)
        return held

    def beat(self, held: Held) -> bool:
        return accepted(held.lease.heartbeat)

    def finish(self, held: Held) -> bool:
        return accepted(lambda: held.block.__exit__(None, None, None))

    def fail(self, held: Held) -> bool:
        self._leave(held, ValueError("went wrong"))
        return not held.lease.lost

    def release(self, held: Held) -> bool:
        self._leave(held, SystemExit())
        return not held.lease.lost

    def _leave(self, held: Held, error: BaseException) -> None:
        with suppress(type(error)):
            held.block.__exit__(type(error), error, None)

    def close(self) -> None:
        # A dead worker leaves no block: nothing more is to be written for it.
        for block, lease in self.entered:
            holding_of(lease).begin_to_end()
            holding_of(lease).ended("release")
            with suppress(RuntimeError):
                block.__exit__(None, None, None)


class Renamed(Verbs):
    """An adopted table, whose every column has another name and every status another word."""

    def __init__(self, sql: Sql) -> None:
        sql(errands.DEFINITION)
        register(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
        super().__init__(sql, errands.Errand)
        self.rows = errands.Errands(sql)

    def close(self) -> None:
        adoption._tables.pop(errands.Errand)
        self.rows.sql("DROP SCHEMA office CASCADE")


class Called(NamedTuple):
    """What a worker in another language keeps of a claim."""

    key: Any
    worker: str
    epoch: int


class Functions(TableWay):
    """The SQL functions, called on a plain connection: nothing of a worker's is Python here."""

    def claim(self, key: Any, worker: str) -> Called | None:
        rows = self._call("claim", "worker => %s, job_id => %s", worker, key)
        return Called(key, worker, rows[0]["lease_epoch"]) if rows else None

    def beat(self, held: Called) -> bool:
        return self._accepted("heartbeat", "%s, %s, %s", *held)

    def finish(self, held: Called) -> bool:
        return self._accepted("finish", "%s, %s, %s", *held)

    def fail(self, held: Called) -> bool:
        return self._accepted("fail", "%s, %s, %s, 'E1', 'went wrong'", *held)

    def release(self, held: Called) -> bool:
        return self._accepted("release", "%s, %s, %s", *held)

    def reap(self) -> dict[Any, str]:
        return {int(row["job_id"]): row["outcome"] for row in self._call("reap", "")}

    def _call(self, verb: str, arguments: str, *values: Any) -> list[dict[str, Any]]:
        return self.rows.sql(f"SELECT * FROM {self.rows.table}_{verb}({arguments})", *values)

    def _accepted(self, verb: str, arguments: str, *values: Any) -> bool:
        [row] = self._call(verb, arguments, *values)
        return bool(row[f"{self.rows.table}_{verb}"])


WAYS: dict[str, Callable[[Sql], Way]] = {
    "claim, bigint key": lambda sql: Verbs(sql, media.Job),
    "claim, uuid key": lambda sql: Verbs(sql, Job),
    "claim_next": lambda sql: ClaimNext(sql, media.AsrJob),
    "groups of leases": lambda sql: Groups(sql, Job),
    "hold": lambda sql: Hold(sql, media.Job),
    "an adopted table": Renamed,
    "SQL functions": lambda sql: Functions(sql, media.Job),
}
