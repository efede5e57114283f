"""The admin of job tables."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import label_for_field
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper import values
from jobreaper.admin.checks import LeasedJobAdminChecks
from jobreaper.admin.errors import error_groups, wants_groups
from jobreaper.admin.fields import NotNullJSONField, StorableJSONField
from jobreaper.admin.filters import (
    ErrorFilter,
    LeaseFilter,
    StageFilter,
    StatusFilter,
    WorkerFilter,
    ended_status,
    filled,
    order_of_ended,
)
from jobreaper.admin.job_page import bars, explanation_of, links, shown_parts
from jobreaper.admin.keys import FILTERS, key_in_events, key_of, list_filters
from jobreaper.admin.large import LargeTableAdmin
from jobreaper.admin.permissions import may
from jobreaper.admin.progress import ProgressColumn
from jobreaper.admin.readable import unread_fields
from jobreaper.admin.timeline import events_url, timeline
from jobreaper.admin.verbs import (
    CANCEL,
    FAIL,
    FROM_JOB_PAGE,
    REQUEUE,
    RUN_NOW,
    VERBS,
    Verb,
    ask_then_change,
)
from jobreaper.admin.words import badge, between, shortened
from jobreaper.base import PROTOCOL_FIELDS, LeasedJobQuerySet, own_field_names
from jobreaper.control.pauses import is_paused
from jobreaper.states import LeaseState, Status
from jobreaper.tables import table_of

# What is said of a job in the counters' and the pauses' indexes.
NAMES: Final = ("stage", "type", "queue", "org_id")

# What a job's page begins with.
STATE: Final = (
    *("status_badge", "since", "stage", "lease", "progress_now", "locked_by", "attempts"),
    *("next_run", "trouble"),
)

# The layout of the protocol's fields on a job's page, one entry per line.
LEASE_LINES: Final = (
    ("status", "lease", "locked_by"),
    ("claimed_at", "last_heartbeat_at", "lease_expires_at", "deadline_at"),
    ("attempt_count", "reap_count", "lease_epoch"),
    ("next_earliest_run_at", "dispatched_at", "finished_at"),
    ("fail_code", "fail_reason"),
)


def _action(verb: Verb, description: Any) -> Any:
    @admin.action(permissions=["change"], description=description)
    def ask(self: Any, request: HttpRequest, queryset: models.QuerySet[Any]) -> HttpResponse | None:
        """Change the jobs, after a confirmation."""
        return ask_then_change(self, request, queryset, verb)

    return ask


class LeasedJobAdmin(ProgressColumn, LargeTableAdmin):
    """The admin of a ``LeasedJob``. Subclass it for your own job tables, including adopted ones
    that have the fields and words of a ``LeasedJob``.

    The list shows the state of each lease, filters by status, stage, lease and worker, finds a job
    by its exact id, and stays fast in tables with many millions of rows: it never counts or sorts
    the whole table. A job's page shows the protocol's fields read-only, and the job's events as a
    timeline. Users who may change jobs may also requeue, fail and cancel them.

    Add your own fields to ``list_display`` and ``list_filter``. A filter by a field without choices
    searches the whole table for its values. Fields that you list in ``fields`` or ``fieldsets``
    replace the page's own layout.
    """

    checks_class = LeasedJobAdminChecks
    list_display: Any = (
        "job",
        "status_badge",
        "stage",
        "lease",
        "locked_by",
        "attempts",
        "since",
        "next_run",
        "trouble",
    )
    list_filter: ClassVar[Any] = (StatusFilter, LeaseFilter, StageFilter, WorkerFilter, ErrorFilter)
    search_fields: ClassVar[Any] = ("pk",)
    search_help_text = gettext_lazy("A job's exact id.")
    change_form_template = "admin/jobreaper/job.html"
    actions: Any = tuple(verb.action for verb in VERBS)

    def database(self, request: HttpRequest) -> str:
        """Return the database that workers and the reaper write."""
        return table_of(self.model).alias

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns; in a list of one status, without those that would be empty."""
        return filled(super().get_list_display(request), request)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Return the jobs with the state of their lease, the database's time, and whether they are
        paused.
        """
        # Called in this way, it also works if the model's manager is not from a LeasedJobQuerySet.
        jobs: Any = super().get_queryset(request)
        paused = models.Case(models.When(is_paused(table_of(self.model)), then=True), default=False)
        return LeasedJobQuerySet.with_lease_state(jobs).annotate(seen_at=Now(), is_paused=paused)

    def get_ordering(self, request: HttpRequest) -> Any:
        """Return the newest first; of jobs that have ended, those that ended last, where an index
        has that order.
        """
        field = order_of_ended(self.model)
        if field and self.ordering == LargeTableAdmin.ordering and ended_status(request):
            return (f"-{field}",)
        return super().get_ordering(request)

    def in_order_of(self, request: HttpRequest, field: str) -> models.QuerySet[Any] | None:
        """Return the jobs of which a list sorted by a field looks at the newest ones."""
        if field != order_of_ended(self.model):
            return super().in_order_of(request, field)
        rows: models.QuerySet[Any] = self.model._base_manager.filter(status=ended_status(request))
        return rows.filter(**{f"{field}__isnull": False})

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list; above failed jobs, how many there are of each error."""
        more = dict(extra_context or {})
        if request.method == "GET" and wants_groups(request):
            more["errors"] = error_groups(self, request)
        return super().changelist_view(request, more)

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        """Return the job with exactly this id."""
        if not search_term.strip():
            return queryset, False
        keys = []
        for term in {search_term, search_term.strip()}:
            with suppress(ValidationError, ValueError, TypeError):
                keys.append(key_of(self.opts.pk, term))
        return (queryset.filter(pk__in=keys) if keys else queryset.none()), False

    # The list

    @admin.display(description=gettext_lazy("id"))
    def job(self, job: Any) -> Any:
        """The primary key."""
        return job.pk

    @admin.display(description=gettext_lazy("status"))
    def status_badge(self, job: Any) -> Any:
        """The status, in color if the job has ended."""
        tones = {Status.SUCCESS: "good", Status.FAILED: "bad"}
        return badge(job.status, tones[job.status]) if job.status in tones else job.status

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, job: Any) -> SafeString:
        """The state of the lease, by the database's clock, as a word and a note."""
        if not job.lease_state:
            return self.get_empty_value_display()
        state = LeaseState(job.lease_state)
        if state is LeaseState.NONE:
            note = _("no lease")
        elif state is LeaseState.EXPIRED:
            note = _("%(span)s ago") % {"span": between(job.seen_at, job.lease_expires_at)}
        elif state is LeaseState.LATE and job.last_heartbeat_at is not None:
            note = _("silent for %(span)s") % {"span": between(job.seen_at, job.last_heartbeat_at)}
        else:
            note = _("%(span)s left") % {"span": between(job.seen_at, job.lease_expires_at)}
        return badge(state, state, note)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts(self, job: Any) -> str:
        """Attempts started and attempts allowed."""
        return f"{job.attempt_count} / {job.max_attempts}"

    @admin.display(description=gettext_lazy("since"), empty_value="-")
    def since(self, job: Any) -> str | None:
        """How long it has been as it is: due, claimed or ended."""
        at = job.finished_at
        if job.status in (Status.QUEUED, Status.PROCESSING):
            is_queued = job.status == Status.QUEUED
            at = job.next_earliest_run_at if is_queued else job.claimed_at
        if not isinstance(at, datetime) or at > job.seen_at:
            return None
        return between(job.seen_at, at)

    @admin.display(description=gettext_lazy("not before"), empty_value="-")
    def next_run(self, job: Any) -> str | None:
        """What a queued job waits for: the end of a pause, or its due time."""
        due = job.next_earliest_run_at
        if job.status != Status.QUEUED:
            return None
        if job.is_paused:
            return _("paused")
        if isinstance(due, str):
            return due
        if due is None or due <= job.seen_at:
            return None
        return _("in %(span)s") % {"span": between(job.seen_at, due)}

    @admin.display(description=gettext_lazy("last failure"), empty_value="-")
    def trouble(self, job: Any) -> str | None:
        """Why the last attempt failed."""
        said = [str(text) for text in (job.fail_code, job.fail_reason) if text]
        return shortened(": ".join(said)) if said else None

    # A job's page

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        """Return the form field. An empty text becomes NULL if the column allows it. Empty JSON is
        an error if the column does not allow NULL.
        """
        if isinstance(db_field, models.TextField) and db_field.null:
            kwargs["empty_value"] = None
        if isinstance(db_field, models.JSONField):
            kwargs["form_class"] = StorableJSONField if db_field.null else NotNullJSONField
        if db_field.name in NAMES and isinstance(db_field, models.TextField):
            kwargs["max_length"] = values.LONGEST_NAME
        if db_field.name == "stage":
            kwargs["widget"] = AdminTextInputWidget
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        """Return the fields that no form may write: the protocol's fields, the key, fields that are
        not editable, and times that a form cannot represent.
        """
        fixed = [
            field.name
            for field in self.opts.concrete_fields
            if field.name in PROTOCOL_FIELDS
            or (obj is not None and (field.primary_key or not field.editable))
        ]
        if obj is not None:
            fixed += unread_fields(obj).difference(fixed)
        return (*super().get_readonly_fields(request, obj), *fixed, "lease")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the table's own fields first, then the protocol's."""
        if self.fieldsets or self.fields:
            return super().get_fieldsets(request, obj)
        own = [
            name
            for name in self.get_fields(request, obj)
            if name not in PROTOCOL_FIELDS and name != "lease"
        ]
        if obj is None:
            return [(None, {"fields": own})]
        return [
            (_("Fields"), {"fields": own, "classes": ["collapse"]}),
            (_("Lease"), {"fields": LEASE_LINES, "classes": ["jr-lease", "collapse"]}),
        ]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        """Add the timeline, and a button for each verb that applies and is allowed."""
        if obj is not None:
            table = table_of(self.model)
            allowed = self.get_actions(request) if may(self, request, "change", obj) else {}
            job_id = key_in_events(table, obj.pk)
            explained = explanation_of(obj)
            drawn = bars(explained, obj.seen_at, self.admin_site, request) if explained else []
            context |= {
                "explained": explained,
                "bars": drawn,
                "bar_parts": shown_parts(drawn),
                "around": links(self, request, obj),
                "state": self._state(obj),
                "timeline": timeline(table, job_id),
                "events_url": events_url(self.admin_site, request, table, job_id),
                "verbs": [
                    verb for verb in VERBS if verb.action in allowed and verb.applies_to(obj)
                ],
                "posted": {
                    ACTION_CHECKBOX_NAME: str(obj.pk),
                    FROM_JOB_PAGE: "1",
                    FILTERS: list_filters(request),
                },
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _state(self, job: Any) -> list[tuple[Any, Any]]:
        """Return how a job stands, as labels and values: what the list has of it in its columns."""
        shown = []
        for name in STATE:
            value = getattr(self, name)(job) if hasattr(self, name) else getattr(job, name)
            if value not in (None, "", self.get_empty_value_display()):
                shown.append((label_for_field(name, self.model, self), value))
        return shown

    def save_model(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save a job, but not the protocol's fields: a worker may have claimed the job since it was
        read, and its lease must not be overwritten.
        """
        if change:
            left = unread_fields(obj)
            obj.save(update_fields=[n for n in own_field_names(self.model) if n not in left])
        else:
            super().save_model(request, obj, form, change)

    # Operators' verbs

    requeue_jobs = _action(REQUEUE, gettext_lazy("Requeue selected %(verbose_name_plural)s"))
    run_jobs_now = _action(RUN_NOW, gettext_lazy("Run selected %(verbose_name_plural)s now"))
    fail_jobs = _action(FAIL, gettext_lazy("Fail selected %(verbose_name_plural)s"))
    cancel_jobs = _action(CANCEL, gettext_lazy("Cancel selected %(verbose_name_plural)s"))

    # Deleting. A worker would continue with a job that no longer exists, so a running job has to be
    # cancelled first.

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what Django would delete, and the running jobs that prevent it."""
        to_delete, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        running = [
            _("%(job)s, which is processing: cancel it first") % {"job": job}
            for job in objs
            if job.status == Status.PROCESSING
        ]
        return to_delete, counts, perms_needed, [*protected, *running]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete a job, unless a worker has claimed it since the confirmation page.

        Raises:
            PermissionDenied: it has.
        """
        with transaction.atomic(using=table_of(self.model).alias):
            if not self._locked(self.get_queryset(request).filter(pk=obj.pk)):
                raise PermissionDenied("a worker has claimed the job")
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        """Delete jobs, except those that a worker has claimed since the confirmation page."""
        number = len(queryset)
        with transaction.atomic(using=table_of(self.model).alias):
            pks = self._locked(queryset)
            super().delete_queryset(request, queryset.filter(pk__in=pks))
        if len(pks) < number:
            said = ngettext(
                "%(number)d job was kept: a worker has it in hand.",
                "%(number)d jobs were kept: a worker has them in hand.",
                number - len(pks),
            )
            self.message_user(request, said % {"number": number - len(pks)}, messages.WARNING)

    def _locked(self, jobs: models.QuerySet[Any]) -> list[Any]:
        """Lock the jobs that are not running, so that none can be claimed meanwhile, and return
        their keys.
        """
        idle = jobs.using(table_of(self.model).alias).exclude(status=Status.PROCESSING)
        return list(idle.select_for_update(skip_locked=True).values_list("pk", flat=True))
