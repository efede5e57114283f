"""How everything stands, at one look: for the Reaper page, for a terminal, and for the metrics."""

from jobreaper.overview.headline import Headline, headline
from jobreaper.overview.reaper import ReaperNow, reaper_now
from jobreaper.overview.series import Span, passes, series
from jobreaper.overview.stuck import OVERDUE_SEC, StuckJob, stuck_jobs
from jobreaper.overview.tables import TableNow, table_now

__all__ = [
    "OVERDUE_SEC",
    "Headline",
    "ReaperNow",
    "Span",
    "StuckJob",
    "TableNow",
    "headline",
    "passes",
    "reaper_now",
    "series",
    "stuck_jobs",
    "table_now",
]
