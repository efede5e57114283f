"""The thread that ends full groups of done jobs, while others run the next jobs and claim more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from django.db import Error, close_old_connections, connections, reset_queries

# Without a group for this time, a connection ends if its ``CONN_MAX_AGE`` is over. With Django's
# default of 0, each group would otherwise make its own.
KEEP_CONNECTED_SEC: Final = 1.0


class Ender:
    """Calls ``end`` in a thread of its own, which starts with the first group: a worker with slow
    jobs has none.

    Args:
        end: ends the jobs that are done. After a ``django.db.Error``, the main thread tries again.
        ring: called after each group.
        broken: called with an exception that has ended the thread.
    """

    def __init__(
        self,
        end: Callable[[], object],
        *,
        ring: Callable[[], None],
        broken: Callable[[BaseException], object],
    ) -> None:
        self._end = end
        self._ring = ring
        self._broken = broken
        self._told = threading.Event()
        self._is_dismissed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def tell(self) -> None:
        """Have a group ended. Any thread may call this."""
        if self._thread is None:
            self._start()
        if not self._told.is_set():
            self._told.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="jobreaper-work-end", daemon=True)
                thread.start()
                self._thread = thread

    def dismiss(self) -> None:
        """Wait until the thread has ended. Nobody tells it of a group any more."""
        self._is_dismissed = True
        self._told.set()
        if self._thread is not None:
            self._thread.join()

    def _wait(self) -> bool:
        """Wait for a group, and return whether to go on."""
        if not self._told.wait(KEEP_CONNECTED_SEC):
            close_old_connections()
            self._told.wait()
        self._told.clear()
        return not self._is_dismissed

    def _work(self) -> None:
        try:
            while self._wait():
                try:
                    self._end()
                except Error:
                    connections.close_all()
                self._ring()
                reset_queries()
        except BaseException as error:
            self._broken(error)
        finally:
            connections.close_all()
