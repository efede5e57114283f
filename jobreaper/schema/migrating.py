"""Functions and views after `migrate`: created when their table is ready, and updated to the
current settings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.schema import functions
from jobreaper.schema.objects import NotAllowed
from jobreaper.tables.jobtable import JobTable

logger = logging.getLogger("jobreaper.schema")


def create_when_ready(table: JobTable, connection: BaseDatabaseWrapper) -> None:
    """Create the functions and views of a table, or create them at the end of this ``migrate`` if
    the table does not have its current name or columns yet.
    """
    there = functions.table_as_it_is(table, connection)
    if there is not None and set(table.columns.values()) <= there.columns.keys():
        _waiting.discard((connection.alias, table))
        for made in functions.of_table(table, connection):
            made.create(connection)
    else:
        _waiting.add((connection.alias, table))


# The tables that will get their functions and views when they are ready, by database.
_waiting: set[tuple[str, JobTable]] = set()


def create_what_waited(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Create what could not be created during the migration. A receiver of ``post_migrate``."""
    for alias, table in [*_waiting]:
        if alias == using:
            with _telling_who_may_not():
                create_when_ready(table, connections[using])


def render_package_anew(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Update the functions that belong to no one table, ``jobreaper_policies()`` among them, to
    this version and the current settings, if one of them is installed. A receiver of
    ``post_migrate``.
    """
    connection = connections[using]
    if sender.label != "jobreaper" or connection.vendor != "postgresql":
        return
    comments = {name: comment for name, _, comment, *_ in functions.installed(connection)}
    package = functions.of_package(connection)
    if any(made.name in comments for made in package):
        with _telling_who_may_not():
            for made in package:
                if comments.get(made.name) != made.comment:
                    made.create(connection)


@contextmanager
def _telling_who_may_not() -> Iterator[None]:
    """Let `migrate` succeed for a role that does not own the functions. Check W010 still says what
    to do.
    """
    try:
        yield
    except NotAllowed as error:
        logger.warning("%s", error)
