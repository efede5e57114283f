"""The operator's verbs in the admin: requeue, run now, fail and cancel, after a confirmation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import model_ngettext
from django.db import Error, router, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import get_text_list
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper.admin.keys import FILTERS, list_filters, page_url, with_list_filters
from jobreaper.admin.large import COUNTED_ROWS, RoughCount, count
from jobreaper.admin.permissions import refused, split
from jobreaper.control import by_hand
from jobreaper.db import in_words
from jobreaper.identity import local_clock
from jobreaper.states import Status, sources
from jobreaper.tables import table_of

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]

logger = logging.getLogger(__name__)

# Rows per transaction: few enough that workers hardly wait for their locks.
BATCH: Final = 1000
# Web servers usually end a request after 30 s. What is done by then is kept, and the page says so.
ENOUGH_SEC: Final = 20.0
SHOWN_JOBS: Final = 20
LOCK_NOT_AVAILABLE: Final = "55P03"

CONFIRMED: Final = "confirmed"
FROM_JOB_PAGE: Final = "from_job_page"


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One of the operator's verbs, with the admin's words for it."""

    action: str
    change: Callable[..., list[Any]]
    sources: tuple[Status, ...]
    label: Any
    done: Any
    effect: Any
    # It only applies to jobs that are due later.
    is_for_later: bool = False

    def among(self, jobs: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs it applies to."""
        chosen = jobs.filter(status__in=self.sources)
        return chosen.filter(next_earliest_run_at__gt=Now()) if self.is_for_later else chosen

    def applies_to(self, job: Any) -> bool:
        """Return whether it applies to a job that was read from the admin's list."""
        due_at = job.next_earliest_run_at
        # A time that Python cannot represent may be later.
        is_due = due_at is None or (isinstance(due_at, datetime) and due_at <= now())
        return job.status in self.sources and not (self.is_for_later and is_due)

    @property
    def which(self) -> str:
        """The jobs it applies to, in words."""
        words = get_text_list(list(self.sources), _("or"))
        return _("%(statuses)s for later") % {"statuses": words} if self.is_for_later else words


REQUEUE: Final = Verb(
    action="requeue_jobs",
    change=by_hand.requeue,
    sources=sources(Status.QUEUED),
    label=gettext_lazy("Requeue"),
    done=gettext_lazy("requeued"),
    effect=gettext_lazy(
        "The jobs go back to the queue, due at once and with all their attempts. A worker that is "
        "still running one loses its lease and cannot finish it."
    ),
)
RUN_NOW: Final = Verb(
    action="run_jobs_now",
    change=by_hand.run_now,
    sources=(Status.QUEUED,),
    is_for_later=True,
    label=gettext_lazy("Run now"),
    done=gettext_lazy("made due"),
    effect=gettext_lazy(
        "Jobs that are scheduled for later, or wait for their next attempt, are due at once. "
        "Others are not changed."
    ),
)
FAIL: Final = Verb(
    action="fail_jobs",
    change=by_hand.fail,
    sources=sources(Status.FAILED),
    label=gettext_lazy("Fail"),
    done=gettext_lazy("failed"),
    effect=gettext_lazy(
        "The jobs fail for good, with your reason as theirs. A worker that is still running one "
        "loses its lease and cannot finish it."
    ),
)
CANCEL: Final = Verb(
    action="cancel_jobs",
    change=by_hand.cancel,
    sources=sources(Status.CANCELLED),
    label=gettext_lazy("Cancel"),
    done=gettext_lazy("cancelled"),
    effect=gettext_lazy(
        "The jobs are not run. A worker that is running one is told at its next heartbeat and "
        "cannot finish it."
    ),
)
VERBS: Final = (REQUEUE, RUN_NOW, FAIL, CANCEL)


class ReasonForm(forms.Form):
    """The operator's reason."""

    reason = forms.CharField(
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True}),
        help_text=gettext_lazy("Kept in each job's event, for whoever asks later."),
    )


def ask_then_change(
    model_admin: ModelAdmin, request: HttpRequest, jobs: QuerySet[Any], verb: Verb
) -> HttpResponse | None:
    """Show what would be done. Once that is confirmed, do it, report the result, and return where
    to go next (``None``: back to the list).
    """
    form = ReasonForm(request.POST if CONFIRMED in request.POST else None)
    if not form.is_valid():
        return _ask(model_admin, request, jobs, verb, form)
    chosen = _number_chosen(request, jobs)
    outcome = _change(model_admin, request, jobs, verb, form.cleaned_data["reason"])
    _report(model_admin, request, verb, chosen, outcome)
    if FROM_JOB_PAGE not in request.POST:
        return None
    pk = request.POST[ACTION_CHECKBOX_NAME]
    url = page_url(model_admin.model, pk, model_admin.admin_site.name)
    return HttpResponseRedirect(with_list_filters(url, list_filters(request)))


def _ask(
    model_admin: Any,
    request: HttpRequest,
    jobs: QuerySet[Any],
    verb: Verb,
    form: ReasonForm,
) -> HttpResponse:
    applicable = verb.among(jobs)
    forbidden = refused(model_admin, request, "change", applicable)
    if forbidden:
        applicable = applicable.exclude(pk__in=forbidden)
    number = count(applicable)
    name = model_ngettext(model_admin.opts, number)
    kinds = Counter(applicable.order_by().values_list("status", "lease_state")[:COUNTED_ROWS])
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(
        request,
        "admin/jobreaper/confirm.html",
        {
            **model_admin.admin_site.each_context(request),
            "title": _("%(verb)s %(number)s %(name)s?")
            % {"verb": verb.label, "number": number, "name": name},
            "subtitle": model_admin.place(request),
            "opts": model_admin.opts,
            "media": model_admin.media + form.media,
            "verb": verb,
            "form": form,
            "takes_all": _takes_all(request),
            "number": number,
            "is_rough": isinstance(number, RoughCount),
            "kinds": [(*kind, of_kind) for kind, of_kind in sorted(kinds.items())],
            "others": count(jobs.exclude(pk__in=verb.among(jobs).order_by().values("pk"))),
            "forbidden": len(forbidden),
            "jobs": applicable[:SHOWN_JOBS],
            "unshown": max(int(number) - SHOWN_JOBS, 0),
            # The data that was posted to this page is posted again, with the confirmation.
            "posted": [
                (field, value)
                for field in (ACTION_CHECKBOX_NAME, "select_across", FROM_JOB_PAGE, FILTERS)
                for value in request.POST.getlist(field)
            ],
            "confirmed": CONFIRMED,
        },
    )


def _takes_all(request: HttpRequest) -> bool:
    return bool(forms.BooleanField().to_python(request.POST.get("select_across", "0")))


def _number_chosen(request: HttpRequest, jobs: QuerySet[Any]) -> int | None:
    """Return how many jobs the operator selected, or ``None`` if there are too many to count.

    Selected jobs count even if they no longer match the list's filters.
    """
    if not _takes_all(request):
        return len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
    number = count(jobs)
    return None if isinstance(number, RoughCount) else number


@dataclass
class _Outcome:
    """The result of a verb: how many jobs were changed, how many of them have no log entry, how
    many the operator may not change, and what went wrong, if anything.
    """

    changed: int = 0
    unlogged: int = 0
    forbidden: int = 0
    trouble: str | None = None


def _change(
    model_admin: ModelAdmin, request: HttpRequest, jobs: QuerySet[Any], verb: Verb, reason: str
) -> _Outcome:
    """Change the jobs batch by batch, and return the result."""
    by = request.user.get_username()
    left = applicable = verb.among(jobs).order_by("pk")
    outcome = _Outcome()
    ends_at = local_clock() + ENOUGH_SEC
    while batch := list(left[:BATCH]):
        if left is not applicable and local_clock() >= ends_at:
            outcome.trouble = _(
                "That took too long to go on in one request. Do it again for the rest."
            )
            break
        allowed, forbidden = split(model_admin, request, "change", batch)
        outcome.forbidden += len(forbidden)
        try:
            pks = [job.pk for job in allowed]
            done = verb.change(model_admin.model, pks, by=by, reason=reason or None)
        except Error as error:
            outcome.trouble = _trouble(error)
            break
        outcome.changed += len(done)
        if not _log(model_admin, request, allowed, done, verb, reason):
            outcome.unlogged += len(done)
        left = applicable.filter(pk__gt=batch[-1].pk)
    return outcome


def _trouble(error: Error) -> str:
    if getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE:
        return _(
            "Another transaction has locked one of the jobs, or their table. Try again in a moment."
        )
    return _("The database refused: %(error)s") % {"error": in_words(error)}


def _log(
    model_admin: ModelAdmin,
    request: HttpRequest,
    jobs: list[Any],
    done: list[Any],
    verb: Verb,
    reason: str,
) -> bool:
    """Write Django's log entries for the jobs whose keys are in ``done``, and return whether that
    succeeded. The jobs are changed even if it did not.
    """
    message = f"{verb.label}: {reason}" if reason else str(verb.label)
    table = table_of(model_admin.model)
    keys = {table.prepare_pk(pk) for pk in done}
    changed = [job for job in jobs if table.prepare_pk(job.pk) in keys]
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            LogEntry.objects.log_actions(
                cast("Any", request.user.pk), cast("Any", changed), CHANGE, message
            )
    # A model's __str__() may raise anything.
    except Exception as error:
        logger.warning("the admin's log was not written: %s", in_words(error))
        return False
    return True


def _report(
    model_admin: ModelAdmin, request: HttpRequest, verb: Verb, chosen: int | None, outcome: _Outcome
) -> None:
    def say(said: str, level: int, number: int, **more: Any) -> None:
        words = {"number": number, "done": verb.done, **more}
        model_admin.message_user(request, said % words, level)

    changed = outcome.changed
    if changed:
        said = ngettext(
            "%(number)d %(name)s was %(done)s.", "%(number)d %(name)s were %(done)s.", changed
        )
        say(said, messages.SUCCESS, changed, name=model_ngettext(model_admin.opts, changed))
    if outcome.unlogged:
        said = ngettext(
            "%(number)d change is missing in the admin's log: it could not be written.",
            "%(number)d changes are missing in the admin's log: it could not be written.",
            outcome.unlogged,
        )
        say(said, messages.WARNING, outcome.unlogged)
    if outcome.forbidden:
        said = ngettext(
            "%(number)d was not %(done)s: you may not change it.",
            "%(number)d were not %(done)s: you may not change them.",
            outcome.forbidden,
        )
        say(said, messages.ERROR, outcome.forbidden)
    left = None if chosen is None else chosen - changed - outcome.forbidden
    if outcome.trouble is not None:
        rest = _("Nothing was changed.") if not changed else _("The rest was not changed.")
        model_admin.message_user(request, f"{outcome.trouble} {rest}", messages.ERROR)
    elif left:
        said = ngettext(
            "%(number)d was not %(done)s: it is not %(statuses)s, or has left the list meanwhile.",
            "%(number)d were not %(done)s: they are not %(statuses)s, or have left the list "
            "meanwhile.",
            left,
        )
        say(said, messages.WARNING, left, statuses=verb.which)
