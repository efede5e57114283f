"""Tests that commit want a database that is emptied quickly."""

from tests.committed import foreign_client, sql, transactional_db

__all__ = ["foreign_client", "sql", "transactional_db"]
