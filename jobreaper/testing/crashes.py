"""What happens to a job sooner or later, at the moment that a test chooses."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, NoReturn

from django.db import connection, connections
from django.db.models import DateTimeField, Value

from jobreaper.exceptions import JobreaperError, LeaseLost
from jobreaper.identity import id_of_child
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.queue.handlers import Handler
from jobreaper.reaper import dead_workers, reap
from jobreaper.tables import table_of
from jobreaper.testing import running
from jobreaper.testing.running import claimed, make_due

MOMENTS: Final = ("after claim", "before finish", "in finish", "after finish")

# How long a worker that is to be killed may take to reach the moment.
PATIENCE_SEC: Final = 60.0

_HAS_ENDED: Final = 3
_LONG_AGO: Final = "2000-01-01T00:00:00Z"


def lose_lease(lease: Lease) -> None:
    """Take a job away from its worker, as the reaper does after a network partition, and tell the
    worker: its next ``check()`` raises ``LeaseLost``. Call it in a handler.
    """
    _take_away(holding_of(lease).table.model, lease.pk)
    # Its next heartbeat says so; in the transaction of a test, there is none.
    with suppress(LeaseLost):
        lease.heartbeat()


def freeze(lease: Lease) -> None:
    """Take a job away from its worker as if the process had been frozen meanwhile, by SIGSTOP or a
    laptop's sleep: the worker does not know. Call it in a handler. Whatever the handler writes for
    the job afterwards is rejected, and the job is queued again, and due.
    """
    heartbeat.heart.remove(holding_of(lease))
    _take_away(holding_of(lease).table.model, lease.pk)


def _take_away(model: Any, pk: Any) -> None:
    """Let the lease of a job run out, and reap it."""
    table = table_of(model)
    column = table.columns["lease_expires_at"]
    name = next(own.name for own in model._meta.concrete_fields if own.column == column)
    rows = model._base_manager.using(table.alias).filter(pk=pk)
    rows.update(**{name: Value(_LONG_AGO, DateTimeField())})
    reap([model], hold=False)
    make_due(model)


def finish_twice(job: Any, handler: Handler | None = None) -> list[BaseException | None]:
    """Run a queued job twice at once, as happens when its worker is frozen for longer than the
    lease: just before the first run ends the job, the second one claims it. Return the exceptions
    of both runs: ``LeaseLost`` of the first, whose writes in the transaction of ``finish()`` are
    undone, and ``None`` of the second.

    Both runs have to see the job, so the test must be a ``TransactionTestCase``.

    Raises:
        AssertionError: the job cannot be claimed, or both runs or none have finished it.
    """
    _refuse_transaction("finish_twice()")
    second = _SecondRun(type(job), job.pk, handler)
    first = _Watched(claimed(job), second.begin, _nothing)
    outcomes = [running.run(first, handler, before_end=second.begin), second.join()]
    number = sum(error is None for error in outcomes)
    if number != 1:
        raise AssertionError(f"{number} runs of {job} have finished it: {outcomes!r}")
    return outcomes


class _SecondRun:
    """Another worker that gets the job of a frozen one."""

    def __init__(self, model: Any, pk: Any, handler: Handler | None) -> None:
        self._model, self._pk, self._handler = model, pk, handler
        self._has_claimed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = False

    def begin(self, lease: Lease | None = None) -> None:
        """Claim the job in another thread, and return when that is done: its run may have to wait
        for what the first one has locked.
        """
        if self._begun:
            return
        self._begun = True
        self._thread.start()
        self._has_claimed.wait(PATIENCE_SEC)

    def _run(self) -> None:
        try:
            _take_away(self._model, self._pk)
            rows = self._model._base_manager.using(table_of(self._model).alias)
            lease = claimed(rows.get(pk=self._pk))
            self._has_claimed.set()
            self._error = running.run(lease, self._handler)
        except BaseException as error:
            self._error = error
        finally:
            self._has_claimed.set()
            connections.close_all()

    def join(self) -> BaseException | None:
        if not self._begun:
            raise AssertionError("the first run did not come to its end")
        self._thread.join(PATIENCE_SEC)
        return self._error


class _Watched(Lease):
    """A lease that calls a function before its handler ends it."""

    __slots__ = ("_after", "_before")

    def __init__(
        self, lease: Lease, before: Callable[[], object], after: Callable[[], object]
    ) -> None:
        super().__init__(holding_of(lease))
        self._before, self._after = before, after

    def finish(self, result: Any = None) -> None:
        """Finish it, after ``before`` and before ``after``."""
        self._before()
        super().finish(result)
        self._after()


def kill_worker_at(moment: str, job: Any, handler: Handler | None = None) -> None:
    """Run a queued job in a process of its own that is killed by SIGKILL at a moment, and give the
    job back as the reaper does for a dead worker. The job is due again then.

    Args:
        moment: ``"after claim"``: before the handler starts. ``"before finish"``: when the handler
            finishes the job or returns. ``"in finish"``: when the statement that finishes the job
            has been sent; in a transaction of the handler's own, that is before its COMMIT.
            ``"after finish"``: when the job is finished.
        job: the job, which must be committed: the test must be a ``TransactionTestCase``.
        handler: as for ``run_due()``.

    Raises:
        AssertionError: the worker did not reach the moment.
        ValueError: there is no such moment.
    """
    if moment not in MOMENTS:
        raise ValueError(f"there is no moment {moment!r}; there are {', '.join(MOMENTS)}")
    _refuse_transaction("kill_worker_at()")
    with warnings.catch_warnings():
        # That this process has threads: the child uses none of what they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _be_the_worker(moment, job, handler)
    status = _wait(pid)
    dead_workers.give_back(table_of(type(job)), id_of_child(pid), "killed by a test")
    make_due(type(job))
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        code = os.waitstatus_to_exitcode(status)
        how = "ended the job otherwise" if code == _HAS_ENDED else f"exited with {code}"
        raise AssertionError(f"the worker did not come to {moment!r}: it {how}")


def _wait(pid: int) -> int:
    ends_at = time.monotonic() + PATIENCE_SEC
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > ends_at:
            os.kill(pid, signal.SIGTERM)
            ends_at = float("inf")
        time.sleep(0.01)


def _be_the_worker(moment: str, job: Any, handler: Handler | None) -> NoReturn:
    """Run the job in this child process, which never returns to the test."""
    code = _HAS_ENDED
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        # A thread of its own, since the connections of this one are the parent's.
        thread = threading.Thread(target=_run_until, args=[moment, job, handler])
        thread.start()
        thread.join()
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_until(moment: str, job: Any, handler: Handler | None) -> None:
    lease = claimed(job)
    if moment == "after claim":
        _kill()
    with ExitStack() as stack:
        if moment == "in finish":
            table = holding_of(lease).table
            sent = connections[table.alias].execute_wrapper(_killing_after(lease))
            stack.enter_context(sent)
        before = _kill if moment == "before finish" else _nothing
        after = _kill if moment == "after finish" else _nothing
        error = running.run(_Watched(lease, before, after), handler)
    if error is not None:
        traceback.print_exception(error)


def _killing_after(lease: Lease) -> Callable[..., Any]:
    from jobreaper.db import by_position
    from jobreaper.sql import without_comments

    finish = by_position(without_comments(holding_of(lease).table.statement("finish")))

    def send(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(statement, params, many, context)
        if by_position(statement) == finish:
            _kill()
        return answer

    return send


def _nothing() -> None: ...


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse_transaction(what: str) -> None:
    if connection.in_atomic_block:
        raise JobreaperError(
            f"{what} needs a job that is committed, so that another worker sees it: use a "
            "TransactionTestCase, or @pytest.mark.django_db(transaction=True)"
        )
