"""For the reaper: what happens to leases that ran out and to jobs of dead workers."""

from jobreaper.reaper.passes import reap
from jobreaper.reaper.results import PassResult, ReapedJob, TableResult
from jobreaper.reaper.table_pass import DEFAULT_BATCH_SIZE

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "PassResult",
    "ReapedJob",
    "TableResult",
    "reap",
]
