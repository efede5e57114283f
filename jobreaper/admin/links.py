"""Links to jobs, for users who may follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import Error
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobreaper.admin.keys import key_in_events, key_of, key_of_event, page_url
from jobreaper.admin.large import ReadOnlyAdmin
from jobreaper.admin.words import shortened
from jobreaper.models import JobEvent, RefusedRow, Schedule
from jobreaper.tables import JobTable, job_tables


def _in_events(table: JobTable, term: str) -> str | None:
    try:
        return key_in_events(table, key_of(table.pk, term))
    # No key of this table.
    except (ValidationError, ValueError, TypeError, Error):
        return None


@dataclass(frozen=True)
class JobLink:
    """A column with a link to the event's job, for a request. It is only the id if the job's table
    is not in this admin, or if this user may not see it.
    """

    site: admin.AdminSite
    request: HttpRequest

    # These are the attributes that Django reads from a column.
    __name__ = "job"
    short_description = _("job")

    def __call__(self, event: JobEvent | RefusedRow | Schedule) -> SafeString | str:
        if event.job_id is None:
            return "-"
        shown = shortened(event.job_id)
        for table in job_tables():
            is_there = table.name == event.table and table.alias == event._state.db
            if is_there and self._may_see(table.model):
                pk = key_of_event(table, event.job_id)
                if pk is not None:
                    url = page_url(table.model, pk, self.site.name)
                    return format_html('<a href="{}">{}</a>', url, shortened(str(pk)))
        return shown

    def _may_see(self, model: type[Model]) -> bool:
        if not self.site.is_registered(model):
            return False
        return self.site.get_model_admin(model).has_view_or_change_permission(self.request)


class AdminForTheUser(ReadOnlyAdmin):
    """Records with columns that depend on who looks at them, such as links."""

    def columns_for(self, request: HttpRequest) -> Mapping[str, Any]:
        """Return by name the columns that replace the admin's own."""
        raise NotImplementedError

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns of the list."""
        return self._replaced(super().get_list_display(request), request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Return the lines of a record's page."""
        return self._replaced(super().get_fields(request, obj), request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Return all of them."""
        return self._replaced(super().get_readonly_fields(request, obj), request)

    def _replaced(self, names: Iterable[Any], request: HttpRequest) -> list[Any]:
        columns = self.columns_for(request)
        return [columns.get(name, name) for name in names]


class LinkedAdmin(AdminForTheUser):
    """Records whose column ``job`` is a link to their job. A search for the job's exact id, which
    ``search_fields`` names, finds them.
    """

    search_help_text = _("A job's exact id.")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the records of the job with exactly this id, whatever characters it contains: as
        they have it, or as Python does.
        """
        if not search_term.strip():
            return queryset, False
        [field] = self.search_fields
        terms = {search_term, search_term.strip()}
        meant = Q(**{f"{field}__in": terms})
        for table in job_tables():
            is_here = table.alias == queryset.db and not table.has_composite_key
            if is_here and table.converts_keys:
                texts = {text for term in terms if (text := _in_events(table, term)) is not None}
                meant |= Q(table=table.name, **{f"{field}__in": texts})
        return queryset.filter(meant), False

    def columns_for(self, request: HttpRequest) -> Mapping[str, Any]:
        """Return the links that this user may follow."""
        return {"job": JobLink(self.admin_site, request)}

    @admin.display(description=_("job"))
    def job(self, record: JobEvent | RefusedRow) -> str:
        """The job's id, as a link for users who may follow it."""
        return shortened(record.job_id)
