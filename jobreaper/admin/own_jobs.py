"""The admin of the ready-made job table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobreaper.admin.filters import QueueFilter
from jobreaper.admin.jobs import LeasedJobAdmin
from jobreaper.db import LONGEST_TEXT
from jobreaper.models import Digest, Job
from jobreaper.queue import enqueue_many
from jobreaper.queue.unhandled import has_handler
from jobreaper.states import DEFAULT_QUEUE, Dedupe, Status
from jobreaper.tables import table_of

if TYPE_CHECKING:
    JobModelForm = forms.ModelForm[Job]
else:
    JobModelForm = forms.ModelForm

# The form's fields that enqueue() takes for a new job.
ENQUEUED_FIELDS: Final = (
    "type",
    "payload",
    "org_id",
    "stage",
    "max_attempts",
    "priority",
    "queue",
    "dedupe_key",
)

UNFINISHED: Final = (Status.QUEUED, Status.PROCESSING)


class JobForm(JobModelForm):
    """A job of the ready-made table."""

    def clean_max_attempts(self) -> int:
        """Return the attempts; a new job needs at least one."""
        most: int = self.cleaned_data["max_attempts"]
        if self.instance._state.adding and most < 1:
            raise ValidationError(_("A new job needs at least one attempt."))
        return most

    def clean_queue(self) -> str:
        """Return the queue, or the one of jobs that name none."""
        return self.cleaned_data["queue"] or DEFAULT_QUEUE

    def clean_dedupe_key(self) -> str | None:
        """Return the key, unless another unfinished job has it. Django does not check this, because
        no form contains the status.
        """
        key: str | None = self.cleaned_data["dedupe_key"]
        here = Job.objects.using(table_of(Job).alias)
        others = here.exclude(pk=self.instance.pk).filter(status__in=UNFINISHED)
        # The index finds it by its digest.
        by_digest = others.alias(digest=Digest("dedupe_key"))
        same = by_digest.filter(digest=Digest(models.Value(key))).filter(dedupe_key=key)
        if key is not None and self.instance.status in UNFINISHED and same.exists():
            raise ValidationError(_("A queued or processing job has this key."))
        return key


@admin.register(Job)
class JobAdmin(LeasedJobAdmin):
    """The ready-made job table."""

    form = JobForm
    list_display = (
        *("job", "what"),
        *(name for name in LeasedJobAdmin.list_display[1:] if name != "stage"),
        "org_id",
    )
    list_filter: ClassVar[Any] = (*LeasedJobAdmin.list_filter, QueueFilter)
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": AdminTextInputWidget}}

    def save_model(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool
    ) -> None:
        """Save an existing job as usual, and create a new one as ``enqueue()`` does: due now, with
        its event and a notification.

        Raises:
            PermissionDenied: a job with its key was created after the form was validated.
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

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Return the jobs without their results, which may have megabytes, until one is shown."""
        return super().get_queryset(request).defer("result")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        """Return the fields that no form may write, with the beginning of the result."""
        fixed = super().get_readonly_fields(request, obj)
        return tuple("result_start" if name == "result" else name for name in fixed)

    @admin.display(description=gettext_lazy("type"))
    def what(self, job: Any) -> SafeString | str:
        """The type, and the stage if that is another one."""
        if job.stage in (None, job.type):
            return str(job.type)
        return format_html('{} <span class="jr-note">{}</span>', job.type, job.stage)

    @admin.display(description=gettext_lazy("result"), empty_value="-")
    def result_start(self, job: Any) -> str | None:
        """What the job's function returned, as JSON, cut if it is long."""
        # By itself, Django would ask the database that it reads from, which may be a copy.
        job.refresh_from_db(using=job._state.db, fields=["result"])
        if job.result is None:
            return None
        text = json.dumps(job.result, ensure_ascii=False)
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"

    @admin.display(description=gettext_lazy("not before"), empty_value="-")
    def next_run(self, job: Any) -> str | None:
        """What a queued job waits for, which may be a handler."""
        waits_for = super().next_run(job)
        if waits_for is None and job.status == Status.QUEUED and not has_handler(job):
            return _("no handler")
        return waits_for
