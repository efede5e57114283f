"""The operator's verbs in the admin: requeue, fail and cancel, after a page that asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import model_ngettext, quote
from django.db import Error
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import get_text_list
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper import control
from jobreaper.admin.large import COUNTED_ROWS, RoughCount, count
from jobreaper.admin.times import with_any_time
from jobreaper.db import in_words
from jobreaper.states import Status, sources
from jobreaper.worker import local_clock

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]

# Rows a transaction: few enough that workers hardly wait for their locks.
BATCH: Final = 1000
# Web servers commonly cut a request off after 30 s. What is done by then is kept, and said.
ENOUGH_SEC: Final = 20.0
SHOWN_JOBS: Final = 20
LOCK_NOT_AVAILABLE: Final = "55P03"

CONFIRMED: Final = "confirmed"
FROM_JOB_PAGE: Final = "from_job_page"


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One of the operator's verbs, and what the admin says about it."""

    action: str
    change: Callable[..., list[Any]]
    target: Status
    label: Any
    done: Any
    effect: Any

    @property
    def sources(self) -> tuple[Status, ...]:
        """The statuses it applies to."""
        return sources(self.target)


REQUEUE: Final = Verb(
    action="requeue_jobs",
    change=control.requeue,
    target=Status.QUEUED,
    label=gettext_lazy("Requeue"),
    done=gettext_lazy("requeued"),
    effect=gettext_lazy(
        "The jobs go back to the queue, due at once and with all their attempts. A worker that is "
        "still running one loses its lease and cannot finish it."
    ),
)
FAIL: Final = Verb(
    action="fail_jobs",
    change=control.fail,
    target=Status.FAILED,
    label=gettext_lazy("Fail"),
    done=gettext_lazy("failed"),
    effect=gettext_lazy(
        "The jobs fail for good, with your reason as theirs. A worker that is still running one "
        "loses its lease and cannot finish it."
    ),
)
CANCEL: Final = Verb(
    action="cancel_jobs",
    change=control.cancel,
    target=Status.CANCELLED,
    label=gettext_lazy("Cancel"),
    done=gettext_lazy("cancelled"),
    effect=gettext_lazy(
        "The jobs are not run. A worker that is running one is told at its next heartbeat and "
        "cannot finish it."
    ),
)
VERBS: Final = (REQUEUE, FAIL, CANCEL)


class ReasonForm(forms.Form):
    """Why the operator does it."""

    reason = forms.CharField(
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True}),
        help_text=gettext_lazy("Kept in each job's event, for whoever asks later."),
    )


def ask_then_change(
    model_admin: ModelAdmin, request: HttpRequest, jobs: QuerySet[Any], verb: Verb
) -> HttpResponse | None:
    """Show what would be done; once that is confirmed do it, say what came of it, and return where
    to go next (``None``: back to the list).
    """
    form = ReasonForm(request.POST if CONFIRMED in request.POST else None)
    if not form.is_valid():
        return _ask(model_admin, request, jobs, verb, form)
    chosen = _number_chosen(request, jobs)
    changed, trouble = _change(model_admin, request, jobs, verb, form.cleaned_data["reason"])
    _report(model_admin, request, verb, chosen, changed, trouble)
    if FROM_JOB_PAGE not in request.POST:
        return None
    options = model_admin.model._meta
    name = f"{options.app_label}_{options.model_name}_change"
    pk = request.POST[ACTION_CHECKBOX_NAME]
    site = model_admin.admin_site.name
    return HttpResponseRedirect(reverse(f"admin:{name}", args=[quote(pk)], current_app=site))


def _ask(
    model_admin: ModelAdmin,
    request: HttpRequest,
    jobs: QuerySet[Any],
    verb: Verb,
    form: ReasonForm,
) -> HttpResponse:
    applicable = jobs.filter(status__in=verb.sources)
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
            "subtitle": None,
            "opts": model_admin.opts,
            "media": model_admin.media + form.media,
            "verb": verb,
            "form": form,
            "takes_all": _takes_all(request),
            "number": number,
            "is_rough": isinstance(number, RoughCount),
            "kinds": [(*kind, of_kind) for kind, of_kind in sorted(kinds.items())],
            "others": count(jobs.exclude(status__in=verb.sources)),
            "jobs": applicable[:SHOWN_JOBS],
            "unshown": max(int(number) - SHOWN_JOBS, 0),
            # What was posted to get here is posted again, with the confirmation.
            "posted": [
                (field, value)
                for field in (ACTION_CHECKBOX_NAME, "select_across", FROM_JOB_PAGE)
                for value in request.POST.getlist(field)
            ],
            "confirmed": CONFIRMED,
        },
    )


def _takes_all(request: HttpRequest) -> bool:
    return bool(forms.BooleanField().to_python(request.POST.get("select_across", "0")))


def _number_chosen(request: HttpRequest, jobs: QuerySet[Any]) -> int | None:
    """Return how many jobs the operator meant, ``None`` where they were too many to count.

    Ticked jobs count also where they do not match the list's filters any more.
    """
    if not _takes_all(request):
        return len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
    number = count(jobs)
    return None if isinstance(number, RoughCount) else number


def _change(
    model_admin: ModelAdmin, request: HttpRequest, jobs: QuerySet[Any], verb: Verb, reason: str
) -> tuple[int, str | None]:
    """Change the jobs batch by batch; return how many were changed and what went wrong, if
    anything did.
    """
    by = request.user.get_username()
    left = applicable = jobs.filter(status__in=verb.sources).order_by("pk")
    changed = 0
    ends_at = local_clock() + ENOUGH_SEC
    while batch := list(left.values_list("pk", flat=True)[:BATCH]):
        if changed and local_clock() >= ends_at:
            return changed, _(
                "That took too long to go on in one request. Do it again for the rest."
            )
        try:
            done = verb.change(model_admin.model, batch, by=by, reason=reason or None)
        except Error as error:
            return changed, _trouble(error)
        _log(model_admin, request, done, verb, reason)
        changed += len(done)
        left = applicable.filter(pk__gt=batch[-1])
    return changed, None


def _trouble(error: Error) -> str:
    if getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE:
        return _(
            "Another transaction has locked one of the jobs, or their table. Try again in a moment."
        )
    return _("The database refused: %(error)s") % {"error": in_words(error)}


def _log(
    model_admin: ModelAdmin, request: HttpRequest, pks: list[Any], verb: Verb, reason: str
) -> None:
    message = f"{verb.label}: {reason}" if reason else str(verb.label)
    changed = with_any_time(model_admin.model._default_manager.filter(pk__in=pks))
    LogEntry.objects.log_actions(cast("Any", request.user.pk), changed, CHANGE, message)


def _report(
    model_admin: ModelAdmin,
    request: HttpRequest,
    verb: Verb,
    chosen: int | None,
    changed: int,
    trouble: str | None,
) -> None:
    if changed:
        said = ngettext(
            "%(number)d %(name)s was %(done)s.", "%(number)d %(name)s were %(done)s.", changed
        )
        name = model_ngettext(model_admin.opts, changed)
        model_admin.message_user(
            request, said % {"number": changed, "name": name, "done": verb.done}, messages.SUCCESS
        )
    left = None if chosen is None else chosen - changed
    if trouble is not None:
        rest = _("Nothing was changed.") if not changed else _("The rest was not changed.")
        model_admin.message_user(request, f"{trouble} {rest}", messages.ERROR)
    elif left:
        said = ngettext(
            "%(number)d was not %(done)s: it is not %(statuses)s, or has left the list meanwhile.",
            "%(number)d were not %(done)s: they are not %(statuses)s, or have left the list "
            "meanwhile.",
            left,
        )
        statuses = get_text_list(list(verb.sources), _("or"))
        model_admin.message_user(
            request,
            said % {"number": left, "done": verb.done, "statuses": statuses},
            messages.WARNING,
        )
