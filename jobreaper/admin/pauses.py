"""The admin of pauses: adding one pauses a stage or type, deleting it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobreaper import pauses
from jobreaper.admin.times import with_any_time
from jobreaper.admin.words import timestamp
from jobreaper.models import Job, Pause
from jobreaper.tables import job_tables, table_of

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    ModelForm = forms.ModelForm[Pause]
else:
    ModelAdmin = admin.ModelAdmin
    ModelForm = forms.ModelForm


def _tables() -> dict[str, type[models.Model]]:
    return {table.name: table.model for table in job_tables() if table.can_be_leased}


class PauseForm(ModelForm):
    """What to pause, and why."""

    table = forms.ChoiceField(
        choices=lambda: [(name, name) for name in _tables()], initial=Job._meta.db_table
    )

    class Meta:
        model = Pause
        fields = ("table", "name", "reason")


@admin.register(Pause)
class PauseAdmin(ModelAdmin):
    """What is paused now. Whoever may add pauses may pause, whoever may delete them may resume."""

    form = PauseForm
    list_display = ("name", "table", "reason", "by", "since")
    list_display_links: Any = None
    ordering = ("table", "name")
    actions: Any = ("delete_selected",)
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": AdminTextInputWidget}}

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Pause]:
        """Return the pauses; a time that Python cannot hold is a text in them."""
        return with_any_time(super().get_queryset(request))

    @admin.display(description=_("since"))
    def since(self, pause: Pause) -> str:
        """When it was paused, to the second."""
        return timestamp(pause.at)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``: a pause is there or not."""
        return False

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:
        """Pause as ``jobreaper.pause()`` does, and take over the row it wrote."""
        model = _tables()[obj.table]
        pauses.pause(
            obj.name, model=model, by=request.user.get_username(), reason=obj.reason or None
        )
        stored = self.get_queryset(request).using(table_of(model).alias)
        written = stored.get(table=obj.table, name=obj.name)
        obj.__dict__.update(written.__dict__)

    def delete_model(self, request: HttpRequest, obj: Pause) -> None:
        """Resume."""
        self._resume(request, obj)

    @admin.action(permissions=["delete"], description=_("Resume selected"))
    def delete_selected(self, request: HttpRequest, queryset: models.QuerySet[Pause]) -> None:
        """Resume each of them, in place of Django's own action, which says another word for it."""
        chosen = list(queryset)
        self.log_deletions(request, queryset)
        for pause in chosen:
            self._resume(request, pause)
        said = ngettext("%(number)d was resumed.", "%(number)d were resumed.", len(chosen))
        self.message_user(request, said % {"number": len(chosen)}, messages.SUCCESS)

    def _resume(self, request: HttpRequest, pause: Pause) -> None:
        model = _tables().get(pause.table)
        if model is None:
            # Its job table is gone.
            pause.delete()
        else:
            pauses.resume(pause.name, model=model, by=request.user.get_username())
