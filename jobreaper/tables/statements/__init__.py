"""The statements for one job table: each verb has a function that names its parts.

A ``.sql`` file in ``jobreaper/sql/`` says what a verb does. The functions here fill in its columns,
words and conditions. ``tests/golden/`` contains the complete texts.
"""

from jobreaper.tables.statements.explaining import (
    job_facts,
    progress_columns,
    running_within,
    some_of,
)
from jobreaper.tables.statements.metrics import oldest_due_age, plan, scrape, totals
from jobreaper.tables.statements.overview import count_of_status, stages_in_line, stuck
from jobreaper.tables.statements.parts import (
    LONGEST_TEXT,
    Parts,
    all_written,
    column_type,
    digest,
    has_status,
    id_type,
    key_as_read,
    key_in_utc,
    leased_parts,
    not_refused,
)
from jobreaper.tables.statements.quiet import clocks, quiet
from jobreaper.tables.statements.reaper import (
    dry_run,
    one_pass,
    reclaim_parts,
)
from jobreaper.tables.statements.silence import (
    LEAST_TOGETHER,
    LEAST_WORKERS,
    shows_silence,
    silence,
)
from jobreaper.tables.statements.verbs import leased, limited

__all__ = [
    "LEAST_TOGETHER",
    "LEAST_WORKERS",
    "LONGEST_TEXT",
    "Parts",
    "all_written",
    "clocks",
    "column_type",
    "count_of_status",
    "digest",
    "dry_run",
    "has_status",
    "id_type",
    "job_facts",
    "key_as_read",
    "key_in_utc",
    "leased",
    "leased_parts",
    "limited",
    "not_refused",
    "oldest_due_age",
    "one_pass",
    "plan",
    "progress_columns",
    "quiet",
    "reclaim_parts",
    "running_within",
    "scrape",
    "shows_silence",
    "silence",
    "some_of",
    "stages_in_line",
    "stuck",
    "totals",
]
