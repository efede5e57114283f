"""Examples are the same on every run, so that a change is to blame for a failure."""

from hypothesis import settings

from tests.committed import foreign_client, sql, transactional_db

__all__ = ["foreign_client", "sql", "transactional_db"]

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
