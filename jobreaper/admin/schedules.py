"""The admin of schedules: when they make jobs, and a job now."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_permission_codename
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.links import LinkedAdmin
from jobreaper.admin.permissions import split
from jobreaper.admin.words import badge, shortened, timestamp
from jobreaper.exceptions import JobreaperError
from jobreaper.models import Schedule
from jobreaper.schedule import pause_schedule, resume_schedule, run_schedule
from jobreaper.schedule.declared import declared


@admin.register(Schedule)
class ScheduleAdmin(LinkedAdmin):
    """The schedules that workers have declared. Users who may change them may pause and resume
    them, and make a job now.
    """

    list_display = ("name", "cron", "state", "next_time", "last_time", "job")
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("A schedule's exact name.")
    actions = ("run_now", "pause", "resume")
    fields = readonly_fields = (
        "name",
        "cron",
        "state",
        "next_time",
        "last_time",
        "made_at",
        "job",
        "error",
        "paused_by",
        "definition",
        "declared_at",
    )

    @admin.display(description=_("times"))
    def cron(self, schedule: Schedule) -> str:
        """The expression and its time zone. The row may be from another version."""
        given = schedule.definition
        return shortened(
            f"{given.get('cron')} {given.get('timezone')}" if isinstance(given, dict) else given
        )

    @admin.display(description=_("state"))
    def state(self, schedule: Schedule) -> SafeString:
        """Whether it makes jobs, and why not."""
        if schedule.error is not None:
            return badge(_("error"), "bad", shortened(schedule.error))
        if schedule.paused_at is not None:
            return badge(_("paused"), "late", shortened(schedule.paused_by or ""))
        known = declared().get(schedule.name)
        if known is None:
            return badge(_("not declared"), "plain", _("neither by a handler nor in the settings"))
        if known.definition() != schedule.definition:
            return badge(_("changed"), "late", _("no worker has started with it yet"))
        return badge(_("on"), "good")

    @admin.display(description=_("next time"))
    def next_time(self, schedule: Schedule) -> str:
        """When it makes a job, to the second."""
        return "-" if schedule.next_at is None else timestamp(schedule.next_at)

    @admin.display(description=_("last time"))
    def last_time(self, schedule: Schedule) -> str:
        """The last time for which it made a job, to the second."""
        return "-" if schedule.ticked_at is None else timestamp(schedule.ticked_at)

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether this user may pause, resume and run schedules, which needs the permission
        to change.
        """
        codename = get_permission_codename("change", self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    @admin.action(permissions=["operate"], description=_("Make a job now"))
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Make a job of each, whether it is time or not."""
        for schedule in self._allowed(request, queryset):
            try:
                job = run_schedule(schedule.name)
            except JobreaperError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                said = _("%(name)s: the job %(job)s was made.")
                named = {"name": schedule.name, "job": job.pk}
                self.message_user(request, said % named, messages.SUCCESS)

    @admin.action(permissions=["operate"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Make no more jobs of them."""
        for schedule in self._allowed(request, queryset):
            if pause_schedule(schedule.name, by=request.user.get_username()):
                said = _("%(name)s was paused.") % {"name": schedule.name}
                self.message_user(request, said, messages.SUCCESS)

    @admin.action(permissions=["operate"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Make jobs of them again."""
        for schedule in self._allowed(request, queryset):
            if resume_schedule(schedule.name):
                said = _("%(name)s was resumed.") % {"name": schedule.name}
                self.message_user(request, said, messages.SUCCESS)

    def _allowed(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> list[Schedule]:
        allowed, refused = split(self, request, "operate", queryset)
        if refused:
            names = ", ".join(map(str, refused))
            said = _("You may not change %(names)s.") % {"names": names}
            self.message_user(request, said, messages.ERROR)
        return allowed
