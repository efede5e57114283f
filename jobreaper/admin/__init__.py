"""The admin: job tables with the states of their leases, workers, pauses, events and passes.

Use ``LeasedJobAdmin`` for your own job tables:

    from jobreaper.admin import LeasedJobAdmin

    @admin.register(Transcode)
    class TranscodeAdmin(LeasedJobAdmin):
        list_display = (*LeasedJobAdmin.list_display, "customer")
"""

from jobreaper.admin.events import JobEventAdmin
from jobreaper.admin.jobs import LeasedJobAdmin
from jobreaper.admin.own_jobs import JobAdmin
from jobreaper.admin.passes import ReaperPassAdmin
from jobreaper.admin.pauses import PauseAdmin
from jobreaper.admin.reaper_page import ReaperAdmin
from jobreaper.admin.redis_queue import RedisQueueAdmin
from jobreaper.admin.refused import RefusedRowAdmin
from jobreaper.admin.schedules import ScheduleAdmin
from jobreaper.admin.workers import WorkerAdmin

__all__ = [
    "JobAdmin",
    "JobEventAdmin",
    "LeasedJobAdmin",
    "PauseAdmin",
    "ReaperAdmin",
    "ReaperPassAdmin",
    "RedisQueueAdmin",
    "RefusedRowAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
