"""The admin of job tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.checks import ModelAdminChecks
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.checks import CheckMessage, Error
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper.admin.filters import LeaseFilter, StageFilter, StatusFilter, WorkerFilter
from jobreaper.admin.large import LargeTableAdmin
from jobreaper.admin.timeline import events_url, timeline
from jobreaper.admin.times import fields_out_of_range
from jobreaper.admin.verbs import (
    CANCEL,
    FAIL,
    FROM_JOB_PAGE,
    REQUEUE,
    VERBS,
    ask_then_change,
)
from jobreaper.admin.words import badge, between, shortened
from jobreaper.base import PROTOCOL_COLUMNS, PROTOCOL_FIELDS, LeasedJobQuerySet, own_field_names
from jobreaper.jobtable import OWN_WORDS
from jobreaper.models import Digest, Job
from jobreaper.pauses import is_paused
from jobreaper.queue import enqueue_many
from jobreaper.runs import has_handler
from jobreaper.states import Dedupe, LeaseState, Status
from jobreaper.tables import table_of

if TYPE_CHECKING:
    JobModelForm = forms.ModelForm[Job]
else:
    JobModelForm = forms.ModelForm

# What a form says of a new job and enqueue() takes.
ENQUEUED_FIELDS: Final = (
    "type",
    "payload",
    "org_id",
    "stage",
    "max_attempts",
    "priority",
    "dedupe_key",
)

UNFINISHED: Final = (Status.QUEUED, Status.PROCESSING)

# The protocol's fields as a job's page lays them out, a line each.
LEASE_LINES: Final = (
    ("status", "lease", "locked_by"),
    ("claimed_at", "last_heartbeat_at", "lease_expires_at", "deadline_at"),
    ("attempt_count", "reap_count", "lease_epoch"),
    ("next_earliest_run_at", "dispatched_at", "finished_at"),
    ("fail_code", "fail_reason"),
)


class NotNullJSONField(forms.JSONField):
    """Takes ``{}`` for a value, and nothing at all for a mistake: Django's own does the reverse."""

    empty_values: Any = [None]


class LeasedJobAdminChecks(ModelAdminChecks):
    """Django's checks, where the model is one that the pages can show."""

    def check(self, admin_obj: Any, **kwargs: Any) -> list[CheckMessage]:
        """Report E008: the model has not a ``LeasedJob``'s fields and words."""
        model = admin_obj.model
        names = {field.name for field in model._meta.concrete_fields}
        missing = [name for name in PROTOCOL_COLUMNS if name not in names]
        if missing:
            problem = f"has no field {', '.join(missing)}"
        elif table_of(model).words != OWN_WORDS:
            problem = "has words of its own for the status"
        else:
            return super().check(admin_obj, **kwargs)
        return [
            Error(
                f"{model._meta.label} {problem}, so {type(admin_obj).__name__} cannot show it.",
                hint="Use Django's ModelAdmin for it. See docs/checks.md#e008",
                obj=type(admin_obj),
                id="jobreaper.E008",
            )
        ]


class LeasedJobAdmin(LargeTableAdmin):
    """The admin of a ``LeasedJob``. Subclass it for your own job tables: adopted ones too, where
    their fields and words are those of a ``LeasedJob``.

    The list shows how each lease stands, filters by status, stage, lease and worker, finds a job by
    its exact id, and stays quick on tables of many millions of rows: it never counts or sorts the
    whole table. A job's page shows the fields of the protocol read-only and the job's events as a
    timeline. Whoever may change jobs may also requeue, fail and cancel them.

    Add to ``list_display`` and ``list_filter`` what your table has besides; a filter by a field
    without choices looks for them in the whole table. Fields you list in ``fields`` or
    ``fieldsets`` replace the page's own layout.
    """

    checks_class = LeasedJobAdminChecks
    list_display: Any = (
        "job",
        "status_badge",
        "stage",
        "lease",
        "locked_by",
        "attempts",
        "next_run",
        "trouble",
    )
    list_filter: ClassVar[Any] = (StatusFilter, LeaseFilter, StageFilter, WorkerFilter)
    search_fields: ClassVar[Any] = ("pk",)
    search_help_text = gettext_lazy("A job's exact id.")
    change_form_template = "admin/jobreaper/job.html"
    actions: Any = (REQUEUE.action, FAIL.action, CANCEL.action)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Return the jobs with the state of their lease, the database's time, and whether they are
        paused.
        """
        # Called this way it works for a model whose manager is not a LeasedJobQuerySet's.
        jobs: Any = super().get_queryset(request)
        paused = models.Case(models.When(is_paused(table_of(self.model)), then=True), default=False)
        return LeasedJobQuerySet.with_lease_state(jobs).annotate(seen_at=Now(), is_paused=paused)

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        """Return the job with exactly this id."""
        if not search_term.strip():
            return queryset, False
        try:
            pk = self.opts.pk.to_python(search_term.strip())
        except ValidationError:
            return queryset.none(), False
        return queryset.filter(pk=pk), False

    # The list

    @admin.display(description=gettext_lazy("id"))
    def job(self, job: Any) -> Any:
        """The primary key."""
        return job.pk

    @admin.display(description=gettext_lazy("status"))
    def status_badge(self, job: Any) -> Any:
        """The status, coloured where it is an end."""
        tones = {Status.SUCCESS: "good", Status.FAILED: "bad"}
        return badge(job.status, tones[job.status]) if job.status in tones else job.status

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, job: Any) -> SafeString:
        """How the lease stands, by the database's clock, in a word and a note."""
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
        """Attempts started, of those allowed."""
        return f"{job.attempt_count} / {job.max_attempts}"

    @admin.display(description=gettext_lazy("not before"), empty_value="-")
    def next_run(self, job: Any) -> str | None:
        """What a queued job waits for: that it is resumed, or its time where that is to come."""
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
        """Why the last attempt ended badly."""
        said = [str(text) for text in (job.fail_code, job.fail_reason) if text]
        return shortened(": ".join(said)) if said else None

    # A job's page

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        """Return the form field. A text left empty is NULL where the column allows it, and JSON
        left empty is an error where the column does not allow NULL.
        """
        if isinstance(db_field, models.TextField) and db_field.null:
            kwargs["empty_value"] = None
        if isinstance(db_field, models.JSONField) and not db_field.null:
            kwargs["form_class"] = NotNullJSONField
        if db_field.name == "stage":
            kwargs["widget"] = AdminTextInputWidget
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        """Return what no form may write: the protocol's fields, the key, what is not editable, and
        times that a form cannot hold.
        """
        fixed = [
            field.name
            for field in self.opts.concrete_fields
            if field.name in PROTOCOL_FIELDS
            or (obj is not None and (field.primary_key or not field.editable))
        ]
        if obj is not None:
            fixed += fields_out_of_range(obj).difference(fixed)
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
        lease = (
            [] if obj is None else [(_("Lease"), {"fields": LEASE_LINES, "classes": ["jr-lease"]})]
        )
        return [(None, {"fields": own}), *lease]

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
            allowed = self.get_actions(request)
            context |= {
                "timeline": timeline(table, obj.pk),
                "events_url": events_url(self.admin_site, request, table, obj.pk),
                "verbs": [
                    verb for verb in VERBS if verb.action in allowed and obj.status in verb.sources
                ],
                "action_checkbox_name": ACTION_CHECKBOX_NAME,
                "from_job_page": FROM_JOB_PAGE,
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def save_model(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save a job and leave the protocol's fields alone: a worker may have claimed it since it
        was read, and that lease must not be written over.
        """
        if change:
            left = fields_out_of_range(obj)
            obj.save(update_fields=[n for n in own_field_names(self.model) if n not in left])
        else:
            super().save_model(request, obj, form, change)

    # Operators' verbs

    @admin.action(
        permissions=["change"], description=gettext_lazy("Requeue selected %(verbose_name_plural)s")
    )
    def requeue_jobs(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> HttpResponse | None:
        """Give the jobs back to the queue, after asking."""
        return ask_then_change(self, request, queryset, REQUEUE)

    @admin.action(
        permissions=["change"], description=gettext_lazy("Fail selected %(verbose_name_plural)s")
    )
    def fail_jobs(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> HttpResponse | None:
        """Fail the jobs for good, after asking."""
        return ask_then_change(self, request, queryset, FAIL)

    @admin.action(
        permissions=["change"], description=gettext_lazy("Cancel selected %(verbose_name_plural)s")
    )
    def cancel_jobs(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> HttpResponse | None:
        """Cancel the jobs, after asking."""
        return ask_then_change(self, request, queryset, CANCEL)

    # Deleting. A worker would go on with a job that is gone: a running one is cancelled first.

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what Django would delete, and the running jobs that stand in the way."""
        to_delete, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        running = [
            _("%(job)s, which is processing: cancel it first") % {"job": job}
            for job in objs
            if job.status == Status.PROCESSING
        ]
        return to_delete, counts, perms_needed, [*protected, *running]

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete a job, unless a worker has claimed it since the page that asked.

        Raises:
            PermissionDenied: it has.
        """
        with transaction.atomic(using=table_of(self.model).alias):
            if not self._locked(self.get_queryset(request).filter(pk=obj.pk)):
                raise PermissionDenied("a worker has claimed the job")
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        """Delete jobs, except those that a worker has claimed since the page that asked."""
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
        """Lock those of the jobs that are not running, so that none can be claimed meanwhile, and
        return their keys.
        """
        idle = jobs.using(table_of(self.model).alias).exclude(status=Status.PROCESSING)
        return list(idle.select_for_update(skip_locked=True).values_list("pk", flat=True))


class JobForm(JobModelForm):
    """A job of the ready-made table."""

    def clean_max_attempts(self) -> int:
        """Return the attempts, which are at least one where the job is new."""
        most: int = self.cleaned_data["max_attempts"]
        if self.instance._state.adding and most < 1:
            raise ValidationError(_("A new job needs at least one attempt."))
        return most

    def clean_dedupe_key(self) -> str | None:
        """Return the key, unless another live job has it: Django does not look, since the status
        is in no form.
        """
        key: str | None = self.cleaned_data["dedupe_key"]
        others = Job.objects.exclude(pk=self.instance.pk).filter(status__in=UNFINISHED)
        # By its digest it is found in the index.
        by_digest = others.alias(digest=Digest("dedupe_key"))
        same = by_digest.filter(digest=Digest(models.Value(key))).filter(dedupe_key=key)
        if key is not None and self.instance.status in UNFINISHED and same.exists():
            raise ValidationError(_("A queued or processing job has this key."))
        return key


@admin.register(Job)
class JobAdmin(LeasedJobAdmin):
    """The ready-made job table."""

    form = JobForm
    list_display = ("job", "type", *LeasedJobAdmin.list_display[1:], "org_id")
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": AdminTextInputWidget}}

    def save_model(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save a job as any other is saved, and make a new one as ``enqueue()`` does: due now, with
        its event and a word to the workers.

        Raises:
            PermissionDenied: a job with its key was made since the form was checked.
        """
        if change:
            super().save_model(request, obj, form, change)
            return
        made = enqueue_many(
            [{name: getattr(obj, name) for name in ENQUEUED_FIELDS}],
            dedupe=None if obj.dedupe_key is None else Dedupe.SKIP,
        )
        if not made.ids:
            raise PermissionDenied("a queued or processing job has this key")
        expected_ms = obj.expected_duration_ms
        [obj.pk] = made.ids
        obj.refresh_from_db(using=table_of(Job).alias)
        obj._state.adding = False
        if expected_ms is not None:
            obj.expected_duration_ms = expected_ms
            obj.save(update_fields=["expected_duration_ms"])

    @admin.display(description=gettext_lazy("not before"), empty_value="-")
    def next_run(self, job: Any) -> str | None:
        """What a queued job waits for; that may be a handler."""
        waits_for = super().next_run(job)
        if waits_for is None and job.status == Status.QUEUED and not has_handler(job):
            return _("no handler")
        return waits_for
