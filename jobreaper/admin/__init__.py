"""The admin: job tables with their lease states, what is paused, events and passes.

``LeasedJobAdmin`` is there for your own job tables:

    from jobreaper.admin import LeasedJobAdmin

    @admin.register(Transcode)
    class TranscodeAdmin(LeasedJobAdmin):
        list_display = (*LeasedJobAdmin.list_display, "customer")
"""

from jobreaper.admin.events import JobEventAdmin
from jobreaper.admin.jobs import JobAdmin, LeasedJobAdmin
from jobreaper.admin.passes import ReaperPassAdmin
from jobreaper.admin.pauses import PauseAdmin

__all__ = ["JobAdmin", "JobEventAdmin", "LeasedJobAdmin", "PauseAdmin", "ReaperPassAdmin"]
