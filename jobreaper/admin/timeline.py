"""JobEvents in words: what happened, by whom, why, and how long after the previous event."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.databases import DATABASE, databases
from jobreaper.admin.readable import Unread, with_any_value
from jobreaper.admin.words import badge, duration, milliseconds, moment, shortened, timestamp
from jobreaper.db import LONGEST_TEXT
from jobreaper.explaining.attempts import time_in
from jobreaper.explaining.reported import in_words
from jobreaper.models import JobEvent
from jobreaper.states import EventType
from jobreaper.tables import JobTable

SHOWN_EVENTS: Final = 100

# What happened, and the tone of its badge.
_WHAT: Final[dict[str, tuple[Any, str]]] = {
    EventType.REAPER_REQUEUED: (_("The reaper gave the job back to the queue"), "late"),
    EventType.REAPER_FAILED_TIMEOUT: (_("The reaper failed the job: its lease ran out"), "bad"),
    EventType.REAPER_FAILED_POISON: (_("The reaper failed the job: it lost every worker"), "bad"),
    EventType.REAPER_FAILED_DEADLINE: (_("The reaper failed the job: past its deadline"), "bad"),
    EventType.REAPER_FAILED_STALLED: (_("The reaper failed the job: it got nowhere"), "bad"),
    EventType.JOB_ENQUEUED: (_("The job was enqueued"), "plain"),
    EventType.JOB_CARRIED_OVER: (_("The job was carried over from another queue"), "plain"),
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
    EventType.ADMIN_RUN_NOW: (_("An operator made the job due at once"), "plain"),
    EventType.ADMIN_REQUEUED: (_("An operator gave the job back to the queue"), "plain"),
    EventType.ADMIN_FAILED: (_("An operator failed the job"), "bad"),
    EventType.ADMIN_CANCELLED: (_("An operator cancelled the job"), "plain"),
}

# The detail that names who acted, by the part of the type before its colon.
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
    "progress": (_("progress"), in_words),
    "progress_at": (_("last progress"), moment),
    "next_earliest_run_at": (_("not before"), moment),
    "from_status": (_("was"), shortened),
    "verb": (_("rejected"), shortened),
    "present_status": (_("job was"), shortened),
    "present_epoch": (_("job's epoch"), shortened),
    "present_locked_by": (_("job's worker"), shortened),
}


@dataclass(frozen=True)
class Entry:
    """One event in words, and the (aware) time of the previous event if there is one.

    Anything unexpected from a foreign writer is shown as text.
    """

    event: JobEvent
    previous: datetime | None = None

    @property
    def what(self) -> Any:
        """What happened, in a sentence, or the bare type if it is not from this package."""
        return _WHAT.get(self.event.type or "", (self.event.type or _("(no type)"), ""))[0]

    @property
    def tone(self) -> str:
        """The tone of the badge."""
        return _WHAT.get(self.event.type or "", ("", "plain"))[1]

    @property
    def type_badge(self) -> SafeString:
        """The type as a badge in its tone."""
        return badge(shortened(self.event.type or _("(no type)")), self.tone)

    @property
    def when(self) -> str:
        """The time, to the second."""
        return timestamp(self.event.at)

    @property
    def after(self) -> str:
        """How long after the previous event."""
        at, before = self.event.at, self.previous
        if isinstance(at, datetime) and isinstance(before, datetime):
            return duration(at - before)
        return ""

    @property
    def who(self) -> str:
        """Who acted: a reaper, a worker or an operator. Empty if the event does not say."""
        return shortened(self.event.details.get(self._actor) or "")

    @property
    def _actor(self) -> str:
        return _ACTORS.get((self.event.type or "").partition(":")[0], "by")

    @cached_property
    def facts(self) -> list[tuple[Any, str]]:
        """Other facts, as labels and values."""
        details = self.event.details
        found = [
            (label, shown(details[name]))
            for name, (label, shown) in _FACTS.items()
            if name != self._actor and details.get(name) not in (None, "")
        ]
        return [*found, (_("silent for"), self._silence)] if self._silence else found

    @property
    def _silence(self) -> str:
        """How long a worker that was lost had not been heard of."""
        heard_at, at = time_in(self.event.details.get("last_heartbeat_at")), self.event.at
        if heard_at is None or not isinstance(at, datetime) or heard_at > at:
            return ""
        return duration(at - heard_at)

    @property
    def traceback(self) -> str:
        """The traceback of the exception with which the attempt failed, if it is known."""
        traceback = self.event.details.get("traceback")
        return traceback if isinstance(traceback, str) else ""

    @property
    def raw(self) -> str:
        """The event's data as indented JSON."""
        data = self.event.data
        return data if isinstance(data, Unread) else json.dumps(data, indent=2, ensure_ascii=False)

    @property
    def raw_start(self) -> str:
        """The same, cut if it is so long that it would make the timeline unreadable."""
        raw = self.raw
        return raw if len(raw) <= LONGEST_TEXT else f"{raw[:LONGEST_TEXT]}…"


@dataclass(frozen=True)
class Timeline:
    """The latest events of one job, oldest first. ``is_cut`` is true if there are earlier ones."""

    entries: list[Entry]
    is_cut: bool


def timeline(table: JobTable, job_id: str) -> Timeline:
    """Return the latest events of a job, named as in its events. This includes events without a
    table, from writers older than jobreaper.
    """
    found = with_any_value(JobEvent.objects.using(table.alias)).filter(
        Q(table=table.name) | Q(table=None), job_id=job_id
    )
    latest = list(found.order_by("-id")[: SHOWN_EVENTS + 1])
    times = [*(event.at for event in latest[1:]), None]
    entries = [Entry(event, before) for event, before in zip(latest, times, strict=False)]
    return Timeline(entries[:SHOWN_EVENTS][::-1], is_cut=len(latest) > SHOWN_EVENTS)


def events_url(
    site: admin.AdminSite, request: HttpRequest, table: JobTable, job_id: str
) -> str | None:
    """Return the URL of the list of a job's events, or ``None`` if this user may not see it."""
    if not site.is_registered(JobEvent):
        return None
    if not site.get_model_admin(JobEvent).has_view_or_change_permission(request):
        return None
    address = reverse("admin:jobreaper_jobevent_changelist", current_app=site.name)
    query = {"q": job_id, "table": table.name}
    if len(databases()) > 1:
        query[DATABASE] = table.alias
    return f"{address}?{urlencode(query)}"
