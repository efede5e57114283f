"""Job tables: their columns, the registry, and how a model is adopted."""

from jobreaper.tables.adoption import register
from jobreaper.tables.hidden import HIDDEN, hidden
from jobreaper.tables.jobtable import JobTable
from jobreaper.tables.registry import by_alias, job_tables, named, owner_of, table_of

__all__ = [
    "HIDDEN",
    "JobTable",
    "by_alias",
    "hidden",
    "job_tables",
    "named",
    "owner_of",
    "register",
    "table_of",
]
