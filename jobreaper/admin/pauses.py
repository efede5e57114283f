"""The admin of pauses: adding one pauses a stage or type, deleting it ends the pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import ValidationError
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobreaper import values
from jobreaper.admin.databases import RecordAdmin
from jobreaper.admin.permissions import split
from jobreaper.admin.refusals import RefusalsInWords
from jobreaper.admin.words import timestamp
from jobreaper.control import pauses
from jobreaper.models import Job, Pause
from jobreaper.tables import job_tables, table_of

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Pause]
else:
    ModelForm = forms.ModelForm


def _tables() -> dict[str, type[models.Model]]:
    return {table.name: table.model for table in job_tables() if table.can_be_leased}


class PauseForm(ModelForm):
    """What to pause, and why."""

    table = forms.ChoiceField(
        choices=lambda: [(name, name) for name in _tables()], initial=Job._meta.db_table
    )

    name = forms.CharField(
        max_length=values.LONGEST_NAME,
        widget=AdminTextInputWidget,
        help_text=Pause._meta.get_field("name").help_text,
    )

    class Meta:
        model = Pause
        fields = ("table", "name", "reason")

    def clean(self) -> dict[str, Any] | None:
        """Look for the same pause in the job table's own database.

        Raises:
            ValidationError: it exists.
        """
        cleaned = super().clean()
        model = _tables().get(self.cleaned_data.get("table", ""))
        if model is not None and "name" in self.cleaned_data:
            there = Pause.objects.using(table_of(model).alias)
            named = {key: self.cleaned_data[key] for key in ("table", "name")}
            if there.filter(**named).exists():
                raise ValidationError(_("That is paused already."))
        return cleaned

    def validate_constraints(self) -> None:
        """Do nothing more: Django would look in the database that its routers choose for this
        model.
        """


@admin.register(Pause)
class PauseAdmin(RecordAdmin, RefusalsInWords):
    """The current pauses. Users who may add pauses may pause, users who may delete them
    may resume.
    """

    form = PauseForm
    list_display = ("name", "table", "reason", "by", "since")
    list_display_links: Any = None
    ordering = ("table", "name")
    actions: Any = ("delete_selected",)
    formfield_overrides: ClassVar[Any] = {models.TextField: {"widget": AdminTextInputWidget}}

    @admin.display(description=_("since"))
    def since(self, pause: Pause) -> str:
        """When it was paused, to the second."""
        return timestamp(pause.at)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``: a pause exists or does not."""
        return False

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:
        """Pause as ``jobreaper.pause()`` does, and use the row that it wrote."""
        model = _tables()[obj.table]
        pauses.pause(
            obj.name, model=model, by=request.user.get_username(), reason=obj.reason or None
        )
        self.wrote_to(request, table_of(model).alias)
        stored = self.get_queryset(request).using(table_of(model).alias)
        written = stored.get(table=obj.table, name=obj.name)
        obj.__dict__.update(written.__dict__)

    def delete_model(self, request: HttpRequest, obj: Pause) -> None:
        """Resume."""
        self._resume(request, obj)

    @admin.action(permissions=["delete"], description=_("Resume selected"))
    def delete_selected(self, request: HttpRequest, queryset: models.QuerySet[Pause]) -> None:
        """Resume each of them. This replaces Django's own action, which uses another word."""
        chosen, refused = split(self, request, "delete", queryset)
        self.log_deletions(request, cast("Any", chosen))
        for pause in chosen:
            self._resume(request, pause)
        if chosen:
            said = ngettext("%(number)d was resumed.", "%(number)d were resumed.", len(chosen))
            self.message_user(request, said % {"number": len(chosen)}, messages.SUCCESS)
        if refused:
            names = ", ".join(str(pause) for pause in refused)
            said = _("You may not resume %(names)s.") % {"names": names}
            self.message_user(request, said, messages.ERROR)

    def _resume(self, request: HttpRequest, pause: Pause) -> None:
        model = _tables().get(pause.table)
        if model is None or table_of(model).alias != pause._state.db:
            # Its job table no longer exists, or is now in another database.
            pause.delete(using=pause._state.db)
        else:
            pauses.resume(pause.name, model=model, by=request.user.get_username())
