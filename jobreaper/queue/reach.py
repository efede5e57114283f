"""Whether the database can be reached."""

from __future__ import annotations

import threading

from jobreaper import sql
from jobreaper.db import fetch, retrying
from jobreaper.tables import JobTable


class Reach:
    """Whether the database can be reached. While it cannot, no job is started, because each would
    waste an attempt.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._reached = threading.Event()
        self._reached.set()
        # The number of outages.
        self.outages = 0

    @property
    def is_there(self) -> bool:
        """Whether jobs may be started."""
        return self._reached.is_set()

    def wait(self) -> None:
        """Wait until jobs may be started."""
        self._reached.wait()

    def lose(self) -> None:
        """Record that the database did not answer."""
        self.outages += 1
        self._reached.clear()

    def give_up(self) -> None:
        """Let the waiting threads continue to their end."""
        self._reached.set()

    def find(self) -> None:
        """Try to reach the database, for some seconds.

        Raises:
            django.db.Error: it is still down.
        """
        connection = self._table.connection()
        statement = sql.render("statements/reach")
        retrying(connection, lambda _: fetch(connection, statement, {}))
        self._reached.set()
