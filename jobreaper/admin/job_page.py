"""What a job's page begins with: how it stands, what happens next, its attempts as bars, and links
to the jobs around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobreaper.admin.filters import ErrorFilter, StageFilter, StatusFilter, WorkerFilter
from jobreaper.admin.words import between, duration, shortened, timestamp
from jobreaper.explaining import Attempt, Explanation, explain
from jobreaper.models import Worker
from jobreaper.states import EventType, Status

# The bars are drawn in these units, and stretched to the page.
WIDTH: Final = 1000
HEIGHT: Final = 12
# A part that is too short to be seen is drawn this wide.
LEAST: Final = 2.0

WAITED, RAN, SILENT, REAPED = "plain", "good", "late", "none"

# What the parts of a bar are called, in the order of their time.
PARTS: Final = {
    WAITED: gettext_lazy("queued"),
    RAN: gettext_lazy("ran"),
    "bad": gettext_lazy("ran, and failed"),
    SILENT: gettext_lazy("silent"),
    REAPED: gettext_lazy("lease over"),
}


@dataclass(frozen=True)
class Bar:
    """An attempt on the common line of time."""

    attempt: Attempt
    svg: SafeString
    took: str
    waited: str
    silent: str
    worker_url: str | None

    @property
    def began(self) -> str:
        """When it began, to the second."""
        at = self.attempt.began_at or self.attempt.ended_at
        return "?" if at is None else timestamp(at)

    @property
    def outcome(self) -> Any:
        """How it ended, in a word."""
        if _is_overdue(self.attempt):
            return PARTS[REAPED]
        if _is_late(self.attempt):
            return PARTS[SILENT]
        return _OUTCOMES.get(self.attempt.outcome, self.attempt.outcome)

    @property
    def tone(self) -> str:
        """The tone of that word."""
        return _tone(self.attempt)

    @property
    def error(self) -> str:
        """Why it ended badly."""
        said = [text for text in (self.attempt.fail_code, self.attempt.fail_reason) if text]
        return shortened(": ".join(said)) if self.tone in ("bad", "late", "none") else ""


_OUTCOMES: Final[dict[EventType | None, Any]] = {
    None: gettext_lazy("runs"),
    EventType.JOB_FINISHED: gettext_lazy("finished"),
    EventType.JOB_RETRIED: gettext_lazy("failed, to be tried again"),
    EventType.JOB_FAILED: gettext_lazy("failed"),
    EventType.JOB_RELEASED: gettext_lazy("given back"),
    EventType.JOB_WORKER_LOST: gettext_lazy("worker died"),
    EventType.REAPER_REQUEUED: gettext_lazy("taken back"),
    EventType.REAPER_FAILED_TIMEOUT: gettext_lazy("lost, and failed"),
    EventType.REAPER_FAILED_POISON: gettext_lazy("lost, and failed"),
    EventType.REAPER_FAILED_DEADLINE: gettext_lazy("too long, and failed"),
    EventType.REAPER_FAILED_STALLED: gettext_lazy("stalled, and failed"),
    EventType.JOB_CANCELLED: gettext_lazy("cancelled"),
    EventType.ADMIN_REQUEUED: gettext_lazy("requeued by hand"),
    EventType.ADMIN_FAILED: gettext_lazy("failed by hand"),
    EventType.ADMIN_CANCELLED: gettext_lazy("cancelled by hand"),
}


def explanation_of(job: Any) -> Explanation | None:
    """Return why a job is where it is; ``None`` if the database does not say in time."""
    try:
        return explain(job)
    except (Error, ObjectDoesNotExist):
        return None


def bars(
    found: Explanation, now: datetime, site: admin.AdminSite, request: HttpRequest
) -> list[Bar]:
    """Return the attempts of a job as bars on one line of time, oldest first."""
    begin, end = _limits(found.attempts, now)
    return [
        Bar(
            attempt,
            _drawn(attempt, begin, end, now),
            _span(attempt.ended_at or now, attempt.began_at),
            _span(attempt.began_at, attempt.waited_from),
            _span(attempt.ended_at or now, attempt.silent_from),
            _worker_url(attempt.worker, site, request),
        )
        for attempt in found.attempts
    ]


def _limits(attempts: Sequence[Attempt], now: datetime) -> tuple[datetime, datetime]:
    times = [
        at
        for attempt in attempts
        for at in (attempt.waited_from, attempt.began_at, attempt.ended_at or now)
        if at is not None
    ]
    return min(times, default=now), max(times, default=now)


def _span(end: datetime | None, begin: datetime | None) -> str:
    return "" if end is None or begin is None or end < begin else between(end, begin)


def _tone(attempt: Attempt) -> str:
    if _is_lost(attempt):
        return REAPED
    if _is_late(attempt):
        return SILENT
    if attempt.outcome in (EventType.JOB_RETRIED, EventType.JOB_FAILED, EventType.ADMIN_FAILED):
        return "bad"
    return RAN if attempt.outcome in (None, EventType.JOB_FINISHED) else WAITED


def _parts(attempt: Attempt, now: datetime) -> Iterator[tuple[str, datetime, datetime]]:
    """Yield the parts of an attempt: a tone, from when to when."""
    ended_at = attempt.ended_at or now
    began_at = attempt.began_at or attempt.silent_from or attempt.expired_at or ended_at
    expired_at = min(attempt.expired_at or ended_at, ended_at) if _is_lost(attempt) else ended_at
    silent_from = min(attempt.silent_from or expired_at, expired_at)
    ran = "bad" if _tone(attempt) == "bad" else RAN
    yield WAITED, attempt.waited_from or began_at, began_at
    yield ran, began_at, silent_from
    yield SILENT, silent_from, expired_at
    yield REAPED, expired_at, ended_at


def _is_lost(attempt: Attempt) -> bool:
    return attempt.was_lost or _is_overdue(attempt)


def _is_overdue(attempt: Attempt) -> bool:
    """Return whether it runs on after the end of its lease, as far as anybody knows."""
    return attempt.outcome is None and attempt.expired_at is not None


def _is_late(attempt: Attempt) -> bool:
    """Return whether it runs under a lease, and its worker has not been heard of for a while."""
    return attempt.outcome is None and attempt.expired_at is None and bool(attempt.silent_from)


def _drawn(attempt: Attempt, begin: datetime, end: datetime, now: datetime) -> SafeString:
    """Return the bar of an attempt as SVG, with its parts in words."""
    whole = (end - begin).total_seconds() or 1.0
    rows = []
    said = []
    for tone, start, stop in _parts(attempt, now):
        length = (stop - start).total_seconds()
        if length <= 0:
            continue
        x = (start - begin).total_seconds() / whole * WIDTH
        width = max(length / whole * WIDTH, LEAST)
        said.append(f"{PARTS[tone]} {duration(length)}")
        rows.append((tone, f"{min(x, WIDTH - LEAST):.1f}", f"{width:.1f}", HEIGHT, said[-1]))
    drawn = format_html_join(
        "",
        '<rect class="jr-bar-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>',
        rows,
    )
    return format_html(
        '<svg class="jr-attempt" viewBox="0 0 {} {}" role="img" aria-label="{}"'
        ' preserveAspectRatio="none">{}</svg>',
        *(WIDTH, HEIGHT, ", ".join(said) or "-", drawn),
    )


def _worker_url(worker: str | None, site: admin.AdminSite, request: HttpRequest) -> str | None:
    if worker is None or not site.is_registered(Worker):
        return None
    if not site.get_model_admin(Worker).has_view_or_change_permission(request):
        return None
    address = reverse("admin:jobreaper_worker_changelist", current_app=site.name)
    return f"{address}?{urlencode({'q': worker})}"


def links(model_admin: Any, request: HttpRequest, job: Any) -> list[tuple[Any, str]]:
    """Return links to all jobs of the same worker, stage and error, where the list has such a
    filter.
    """
    filters = model_admin.get_list_filter(request)
    label = model_admin.opts.label_lower.replace(".", "_")
    address = reverse(f"admin:{label}_changelist", current_app=model_admin.admin_site.name)
    wanted: list[tuple[Any, Any, dict[str, str]]] = []
    if job.locked_by and job.status == Status.PROCESSING:
        said = _("Jobs of this worker")
        wanted.append((said, WorkerFilter, {WorkerFilter.parameter_name: job.locked_by}))
    if job.stage:
        said = _("Jobs of this stage")
        wanted.append((said, StageFilter, {StageFilter.parameter_name: job.stage}))
    if job.fail_code and job.status == Status.FAILED:
        query = {StatusFilter.parameter_name: Status.FAILED.value}
        said = _("Jobs that failed with this error")
        wanted.append((said, ErrorFilter, {**query, ErrorFilter.parameter_name: job.fail_code}))
    return [
        (said, f"{address}?{urlencode(query)}")
        for said, needed, query in wanted
        if needed in filters
    ]


def shown_parts(found: Sequence[Bar]) -> list[tuple[str, Any]]:
    """Return the parts that occur in the bars, with their names, for a legend."""
    return [
        (tone, name)
        for tone, name in PARTS.items()
        if any(f"jr-bar-{tone}" in b.svg for b in found)
    ]
