"""Tests that need the database want it emptied quickly."""

from tests.committed import transactional_db  # noqa: F401
