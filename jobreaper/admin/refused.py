"""The admin of the rows that cannot be written: which, why, and trying them again now."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_permission_codename
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobreaper.admin.filters import TableFilter
from jobreaper.admin.links import LinkedAdmin
from jobreaper.admin.permissions import split
from jobreaper.admin.words import shortened, timestamp
from jobreaper.models import RefusedRow


@admin.register(RefusedRow)
class RefusedRowAdmin(LinkedAdmin):
    """The rows that passes and claims leave out for now. Users who may change them may have the
    next pass or claim try them again.
    """

    list_display = ("job", "table", "verb", "why", "since_when", "tries", "again")
    list_filter = (TableFilter,)
    search_fields = ("key",)
    actions = ("try_again",)
    fields = readonly_fields = ("job", "table", "verb", "error", "since_when", "tries", "again")

    @admin.display(description=_("error"))
    def why(self, row: RefusedRow) -> str:
        """The last error, shortened."""
        return shortened(row.error)

    @admin.display(description=_("since"))
    def since_when(self, row: RefusedRow) -> str:
        """When it was first refused, to the second."""
        return timestamp(row.since)

    @admin.display(description=_("tried again"))
    def again(self, row: RefusedRow) -> str:
        """When it is tried again, to the second."""
        return timestamp(row.next_try_at)

    def has_try_again_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether this user may have rows tried again, which needs the permission
        to change.
        """
        codename = get_permission_codename("change", self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    @admin.action(permissions=["try_again"], description=_("Try again now"))
    def try_again(self, request: HttpRequest, queryset: QuerySet[RefusedRow]) -> None:
        """Let the next pass or claim try the rows, even if they are not due yet."""
        allowed, refused = split(self, request, "try_again", queryset)
        keys = [row.pk for row in allowed]
        number = queryset.filter(pk__in=keys).update(next_try_at=Now())
        said = ngettext(
            "The next pass tries %(number)d row again.",
            "The next pass tries %(number)d rows again.",
            number,
        )
        if number:
            self.message_user(request, said % {"number": number}, messages.SUCCESS)
        if refused:
            names = ", ".join(map(str, refused))
            said = _("You may not have %(names)s tried again.") % {"names": names}
            self.message_user(request, said, messages.ERROR)
