"""The database that a page of the admin reads and writes, and names.

Django's routers choose one database for each model, perhaps a replica for reading. The admin reads
jobs where they are written. Their records are in the same database: in each database that contains
job tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from django.contrib import admin
from django.db import models, router
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobreaper.admin.keys import FILTERS
from jobreaper.admin.readable import with_any_value
from jobreaper.tables import by_alias

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

DATABASE: Final = "database"

_WRITTEN_TO: Final = "_jobreaper_database"


def databases() -> list[str]:
    """Return the aliases of the databases that contain job tables."""
    return sorted(by_alias())


class AdminOfDatabase(ModelAdmin):
    """Reads and writes one database, and names it if job tables are in several."""

    def database(self, request: HttpRequest) -> str:
        """Return the alias of the request's database."""
        return router.db_for_write(self.model)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Return its rows, with a text instead of a value that Python cannot represent."""
        return with_any_value(super().get_queryset(request)).using(self.database(request))

    def place(self, request: HttpRequest) -> str | None:
        """Return a page's words for its database, or ``None`` if there is only one."""
        if len(databases()) < 2:
            return None
        return _("in the database %(alias)s") % {"alias": self.database(request)}

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list, and its database."""
        said = {"subtitle": self.place(request)}
        return super().changelist_view(request, {**said, **(extra_context or {})})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a row, and its database."""
        parts = [context.get("subtitle"), self.place(request)]
        context["subtitle"] = ", ".join(part for part in parts if part) or None
        return super().render_change_form(request, context, *args, **kwargs)


class RecordAdmin(AdminOfDatabase):
    """The records beside the jobs, of one database at a time, which ``DatabaseFilter`` selects.

    The URL contains the filter, as Django keeps a list's filters in the URLs of its rows.
    """

    def database(self, request: HttpRequest) -> str:
        """Return the database in the URL. Without one, return the routers' choice for the model, if
        it contains job tables.
        """
        known = databases()
        filters = parse_qs(request.GET.get(FILTERS, ""))
        named = [request.GET.get(DATABASE), *filters.get(DATABASE, ())]
        for alias in (*named, super().database(request)):
            if alias in known:
                return str(alias)
        return known[0]

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Return the admin's filters after that of the databases."""
        return [DatabaseFilter, *super().get_list_filter(request)]

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """Return the filters that lead back to the list, or to the database that was written, if
        any.
        """
        written: str | None = getattr(request, _WRITTEN_TO, None)
        if written is None or len(databases()) < 2:
            return super().get_preserved_filters(request)
        return urlencode({FILTERS: urlencode({DATABASE: written})})

    def wrote_to(self, request: HttpRequest, alias: str) -> None:
        """Remember the database of the row that the request has created, to lead there."""
        setattr(request, _WRITTEN_TO, alias)


class DatabaseFilter(admin.SimpleListFilter):
    """The databases, of which a list shows one. The filter is hidden if there is only one."""

    title = gettext_lazy("database")
    parameter_name = DATABASE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the databases."""
        self._shown = model_admin.database(request)
        known = databases()
        return [(alias, alias) for alias in known] if len(known) > 1 else []

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Return a choice for each database, without one for all."""
        for alias, title in self.lookup_choices:
            yield {
                "selected": alias == self._shown,
                "query_string": changelist.get_query_string({DATABASE: alias}),
                "display": title,
            }

    def queryset(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> models.QuerySet[Any]:
        """Return the rows unchanged: they are already read from that database."""
        return queryset
