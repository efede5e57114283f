"""JobEvents in words: what happened, by whom, why, and how long after the event before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.times import with_any_time
from jobreaper.admin.words import badge, duration, milliseconds, moment, shortened, timestamp
from jobreaper.db import LONGEST_TEXT
from jobreaper.models import JobEvent
from jobreaper.states import EventType
from jobreaper.tables import JobTable, job_tables

SHOWN_EVENTS: Final = 100

# What happened, and the tone of its badge.
_WHAT: Final[dict[str, tuple[Any, str]]] = {
    EventType.REAPER_REQUEUED: (_("The reaper gave the job back to the queue"), "late"),
    EventType.REAPER_FAILED_TIMEOUT: (_("The reaper failed the job: its lease ran out"), "bad"),
    EventType.REAPER_FAILED_POISON: (_("The reaper failed the job: it lost every worker"), "bad"),
    EventType.REAPER_FAILED_DEADLINE: (_("The reaper failed the job: past its deadline"), "bad"),
    EventType.JOB_ENQUEUED: (_("The job was enqueued"), "plain"),
    EventType.JOB_WORKER_LOST: (_("The worker was lost"), "late"),
    EventType.JOB_FINISHED: (_("The worker finished the job"), "good"),
    EventType.JOB_RETRIED: (_("The attempt failed; the job went back to the queue"), "late"),
    EventType.JOB_FAILED: (_("The attempt failed, and the job with it"), "bad"),
    EventType.JOB_RELEASED: (_("The worker released the job unharmed"), "plain"),
    EventType.JOB_CANCELLED: (_("The job was cancelled"), "plain"),
    EventType.JOB_STALE_WRITE_REJECTED: (
        _("A write was rejected: the worker had lost the lease"),
        "late",
    ),
    EventType.JOB_TRACED: (_("The attempt began as part of a trace"), "plain"),
    EventType.ADMIN_REQUEUED: (_("An operator gave the job back to the queue"), "plain"),
    EventType.ADMIN_FAILED: (_("An operator failed the job"), "bad"),
    EventType.ADMIN_CANCELLED: (_("An operator cancelled the job"), "plain"),
}

# Which detail names the one who acted, by the part of the type before its colon.
_ACTORS: Final = {"reaper": "reaper", "job": "locked_by", "admin": "by"}

_FACTS: Final[dict[str, tuple[Any, Callable[[object], str]]]] = {
    "attempt": (_("attempt"), shortened),
    "epoch": (_("epoch"), shortened),
    "reason": (_("reason"), shortened),
    "fail_code": (_("fail code"), shortened),
    "fail_reason": (_("fail reason"), shortened),
    "locked_by": (_("worker"), shortened),
    "duration_ms": (_("worked for"), milliseconds),
    "overdue_ms": (_("overdue by"), milliseconds),
    "next_earliest_run_at": (_("not before"), moment),
    "from_status": (_("was"), shortened),
    "verb": (_("rejected"), shortened),
    "present_status": (_("job was"), shortened),
    "present_epoch": (_("job's epoch"), shortened),
    "present_locked_by": (_("job's worker"), shortened),
}


@dataclass(frozen=True)
class Entry:
    """One event in words, and the time (aware) of the event before it where there is one.

    Whatever a foreign writer put into an event is shown as text.
    """

    event: JobEvent
    previous: datetime | None = None

    @property
    def what(self) -> Any:
        """What happened, in a sentence; the bare type where that is none of this package's."""
        return _WHAT.get(self.event.type or "", (self.event.type or _("(no type)"), ""))[0]

    @property
    def tone(self) -> str:
        """The tone of the badge."""
        return _WHAT.get(self.event.type or "", ("", "plain"))[1]

    @property
    def type_badge(self) -> SafeString:
        """The type on its tone."""
        return badge(shortened(self.event.type or _("(no type)")), self.tone)

    @property
    def when(self) -> str:
        """The time, to the second."""
        return timestamp(self.event.at)

    @property
    def after(self) -> str:
        """How long after the event before."""
        at, before = self.event.at, self.previous
        if isinstance(at, datetime) and isinstance(before, datetime):
            return duration(at - before)
        return ""

    @property
    def who(self) -> str:
        """Who acted: a reaper, a worker or an operator. Empty where the event does not say."""
        return shortened(self.event.details.get(self._actor) or "")

    @property
    def _actor(self) -> str:
        return _ACTORS.get((self.event.type or "").partition(":")[0], "by")

    @cached_property
    def facts(self) -> list[tuple[Any, str]]:
        """What else is known, as labels and values."""
        details = self.event.details
        return [
            (label, shown(details[name]))
            for name, (label, shown) in _FACTS.items()
            if name != self._actor and details.get(name) not in (None, "")
        ]

    @property
    def raw(self) -> str:
        """The event's data as indented JSON."""
        return json.dumps(self.event.data, indent=2, ensure_ascii=False)

    @property
    def raw_start(self) -> str:
        """The same, cut where an event of megabytes would make the timeline unreadable."""
        raw = self.raw
        return raw if len(raw) <= LONGEST_TEXT else f"{raw[:LONGEST_TEXT]}…"


@dataclass(frozen=True)
class Timeline:
    """The latest events of one job, oldest first; ``is_cut`` where there are earlier ones."""

    entries: list[Entry]
    is_cut: bool


def timeline(table: JobTable, pk: object) -> Timeline:
    """Return the latest events of a job. Events without a table count too: writers from before
    jobreaper give none.
    """
    found = with_any_time(JobEvent.objects.using(table.alias)).filter(
        Q(table=table.name) | Q(table=None), job_id=str(pk)
    )
    latest = list(found.order_by("-id")[: SHOWN_EVENTS + 1])
    times = [*(event.at for event in latest[1:]), None]
    entries = [Entry(event, before) for event, before in zip(latest, times, strict=False)]
    return Timeline(entries[:SHOWN_EVENTS][::-1], is_cut=len(latest) > SHOWN_EVENTS)


def events_url(
    site: admin.AdminSite, request: HttpRequest, table: JobTable, pk: object
) -> str | None:
    """Return the address of the list of a job's events, ``None`` for those who may not see it."""
    if not site.is_registered(JobEvent):
        return None
    if not site.get_model_admin(JobEvent).has_view_permission(request):
        return None
    address = reverse("admin:jobreaper_jobevent_changelist", current_app=site.name)
    return f"{address}?{urlencode({'q': str(pk), 'table': table.name})}"


def job_link(site: admin.AdminSite, event: JobEvent) -> SafeString | str:
    """Return a link to the event's job, its bare id where the table is not in this admin."""
    for table in job_tables():
        if table.name == event.table and site.is_registered(table.model):
            options = table.model._meta
            url = reverse(
                f"admin:{options.app_label}_{options.model_name}_change",
                args=[quote(event.job_id)],
                current_app=site.name,
            )
            return format_html('<a href="{}">{}</a>', url, shortened(event.job_id))
    return shortened(event.job_id)
