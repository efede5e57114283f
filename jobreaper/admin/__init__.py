"""The admin: job tables with their lease states, events and passes.

``LeasedJobAdmin`` is there for your own job tables:

    from jobreaper.admin import LeasedJobAdmin

    @admin.register(Transcode)
    class TranscodeAdmin(LeasedJobAdmin):
        list_display = (*LeasedJobAdmin.list_display, "customer")
"""

from jobreaper.admin.events import JobEventAdmin
from jobreaper.admin.jobs import JobAdmin, LeasedJobAdmin
from jobreaper.admin.passes import ReaperPassAdmin

__all__ = ["JobAdmin", "JobEventAdmin", "LeasedJobAdmin", "ReaperPassAdmin"]
