"""Rivals: calls in threads of their own, each with its own connection, seen to wait or not."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, TypeVar

from django.db import connection, connections

from tests.rows import Sql
from tests.waiting import until

T = TypeVar("T")


class Rival(Generic[T]):
    """One call on its way."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._pid: Future[int] = Future()
        self._call = call
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            connection.ensure_connection()
            self._pid.set_result(connection.connection.info.backend_pid)
            self._future.set_result(self._call())
        # Whatever it is, the test is to see it.
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            connections.close_all()

    @property
    def pid(self) -> int:
        """The session it runs in."""
        return self._pid.result(20)

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        """Wait for its end; return what it returned, or raise what it raised."""
        return self._future.result(20)


class Rivals:
    """Starts rivals, and looks at what the server says of them."""

    def __init__(self, sql: Sql) -> None:
        self.sql = sql
        self.started: list[Rival[object]] = []

    def __enter__(self) -> "Rivals":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for rival in self.started:
            rival.thread.join(20)

    def start(self, call: Callable[[], T]) -> Rival[T]:
        rival = Rival(call)
        self.started.append(rival)  # type: ignore[arg-type]
        return rival

    def start_and_see_it_wait(self, call: Callable[[], T]) -> Rival[T]:
        """Start a call, and return once the server says that it waits for a lock."""
        rival = self.start(call)
        until(lambda: self.waits(rival))
        return rival

    def waits(self, rival: Rival[T]) -> bool:
        assert not rival.done, f"it did not wait: {rival.result()!r}"
        rows = self.sql(
            "SELECT pid FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
            rival.pid,
        )
        return bool(rows)
