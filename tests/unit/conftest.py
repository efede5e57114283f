"""Examples are the same on every run, so that a change is to blame for a failure."""

from hypothesis import settings

from tests.committed import transactional_db

__all__ = ["transactional_db"]

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
