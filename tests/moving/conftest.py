"""What the tests of moving have at hand."""

from tests.committed import foreign_client, sql, transactional_db

__all__ = ["foreign_client", "sql", "transactional_db"]
