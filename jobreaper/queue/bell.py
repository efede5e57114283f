"""The bell that wakes the worker's main thread, and the thread that rings it at notifications."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from selectors import EVENT_READ, DefaultSelector
from typing import Final

import psycopg
from django.db import Error, connections
from psycopg.sql import SQL, Identifier

from jobreaper.db import in_words
from jobreaper.db.own import own_connection
from jobreaper.identity import local_clock
from jobreaper.tables import JobTable

logger = logging.getLogger("jobreaper.work")

# After an error, the thread tries to listen again after this time, which doubles with each further
# try.
LISTEN_AGAIN_SEC: Final = 0.5
LONGEST_LISTEN_AGAIN_SEC: Final = 15.0


# Python runs a signal's handler between two steps of Python code. If the signal arrives just before
# the main thread begins to wait, that is after the wait.
LONGEST_WAIT_SEC: Final = 1.0


class Bell:
    """Wakes the one thread that waits for it. You can ring it at any moment, even in a signal
    handler, which must not call ``threading.Event.set()``.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._is_rung = False

    def ring(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        if not self._is_rung:
            self._is_rung = True
            self._rings.put(None)

    def wait(self, until: float | None) -> None:
        """Wait for a ring, at most until this time on the local clock, and for about a second."""
        sec = LONGEST_WAIT_SEC if until is None else until - local_clock()
        with suppress(Empty):
            self._rings.get(timeout=min(max(0.0, sec), LONGEST_WAIT_SEC))
        # From here on, a ring counts for the next wait.
        self._is_rung = False


class Listener(threading.Thread):
    """Calls ``heard`` when jobs of a table are enqueued, and whenever it has started to listen,
    because there may be jobs from before.
    """

    def __init__(self, table: JobTable, heard: Callable[[], object]) -> None:
        super().__init__(name="jobreaper-work-listen", daemon=True)
        self._alias = table.alias
        self._listen = SQL("LISTEN {}").format(Identifier(table.name))
        self._heard = heard
        self._stopping = False
        self._told, self._tell = socket.socketpair()

    def stop(self) -> None:
        """End the thread soon. A signal handler may call this."""
        self._stopping = True
        with suppress(OSError):  # It has ended.
            self._tell.send(b".")

    def run(self) -> None:
        """Listen until told to stop."""
        wait_sec = LISTEN_AGAIN_SEC
        try:
            while not self._stopping:
                try:
                    connection = own_connection(self._alias)
                    with connection.cursor() as cursor:
                        cursor.execute(self._listen)
                    wait_sec = LISTEN_AGAIN_SEC
                    self._hear(connection.connection)
                except (Error, psycopg.Error, OSError) as error:
                    logger.info("listening again in a moment: %s", in_words(error))
                    connections[self._alias].close()
                    self._wait(None, wait_sec)
                    wait_sec = min(2 * wait_sec, LONGEST_LISTEN_AGAIN_SEC)
        finally:
            connections.close_all()
            self._told.close()
            self._tell.close()

    def _hear(self, session: psycopg.Connection) -> None:
        self._heard()
        while not self._stopping:
            self._wait(session.fileno(), None)
            if list(session.notifies(timeout=0)):
                self._heard()

    def _wait(self, fileno: int | None, sec: float | None) -> None:
        """Wait until there is something to read, or until this thread is told to stop."""
        # psycopg's own wait would check every 0.1 s for Ctrl-C.
        with DefaultSelector() as selector:
            selector.register(self._told, EVENT_READ)
            if fileno is not None:
                selector.register(fileno, EVENT_READ)
            selector.select(sec)
