"""Tenants with a schema each, and a backend that moves sessions from one to the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections

from jobreaper.protocol import heartbeat
from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

TENANTS = ("tenant_a", "tenant_b")


@contextmanager
def reconnected(**changes: Any) -> Iterator[None]:
    """Let each thread of this process connect anew, with other settings of the database."""
    given = connections.settings["default"]
    before = {key: given[key] for key in changes}
    mine = connections["default"]
    mine.close()
    del connections["default"]
    given.update(changes)
    try:
        yield
    finally:
        heartbeat.heart.stop()
        connections["default"].close()
        # It is the one that drops the database in the end.
        connections["default"] = mine
        given.update(before)


@pytest.fixture
def tenants(sql: Sql) -> Iterator[None]:
    """Job tables in the schema of each tenant besides the shared ones."""
    for name in TENANTS:
        sql(f"CREATE SCHEMA {name}")
        for table in ("jobs", "jobreaper_jobs"):
            sql(f"CREATE TABLE {name}.{table} (LIKE public.{table} INCLUDING ALL)")
    with reconnected(ENGINE="tests.sessions.tenants"):
        yield
    for name in TENANTS:
        sql(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def schema(name: str) -> Iterator[None]:
    """Be in a tenant's schema, in this thread."""
    wrapper: Any = connections["default"]
    before = wrapper.schema_name
    wrapper.set_schema(name)
    try:
        yield
    finally:
        wrapper.set_schema(before)
