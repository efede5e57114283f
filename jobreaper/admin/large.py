"""Admin lists for tables with many millions of rows. Nothing here reads a whole table."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ALL_VAR, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db import DataError, connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from jobreaper import sql
from jobreaper.admin.databases import RecordAdmin
from jobreaper.admin.refusals import RefusalsInWords
from jobreaper.admin.window import BEFORE, Window, needs_window, read, written
from jobreaper.db import fetch

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

# Counting this many rows takes milliseconds. A filter finds older rows faster than paging does.
COUNTED_ROWS: Final = 10_000


class RoughCount(int):
    """A number of rows that was not counted completely. Django prints its words wherever it shows
    the number of rows of a list.
    """

    def __new__(cls, number: int, words: str) -> RoughCount:
        self = super().__new__(cls, number)
        self.words = words
        return self

    words: str

    def __str__(self) -> str:
        return self.words % {"number": f"{int(self):,}"}


def count(rows: models.QuerySet[Any]) -> int:
    """Return the number of rows, which is exact up to ``COUNTED_ROWS`` and an estimate beyond."""
    counted = rows.order_by().values("pk")[: COUNTED_ROWS + 1].count()
    if counted <= COUNTED_ROWS:
        return counted
    estimate = 0 if rows.query.where else _estimate(rows)
    if estimate > COUNTED_ROWS:
        return RoughCount(estimate, _("about %(number)s"))
    return RoughCount(COUNTED_ROWS, _("more than %(number)s"))


def _estimate(rows: models.QuerySet[Any]) -> int:
    connection = connections[rows.db]
    name = connection.ops.quote_name(rows.model._meta.db_table)
    found = fetch(connection, sql.render("statements/estimate"), {"table": name})
    return int(found[0][0]) if found else 0


class LargeTablePaginator(AnyPaginator):
    """Counts up to ``COUNTED_ROWS`` and offers no page beyond, because an OFFSET of millions reads
    millions of rows.
    """

    object_list: models.QuerySet[Any]

    @cached_property
    def count(self) -> int:
        """The number of rows, estimated if there are many."""
        return count(self.object_list)

    @cached_property
    def num_pages(self) -> int:
        """The number of pages that can be opened."""
        return min(super().num_pages, ceil(COUNTED_ROWS / self.per_page))

    @property
    def is_cut(self) -> bool:
        """Whether there are rows on no page."""
        return isinstance(self.count, RoughCount)


class LargeTableChangeList(ChangeList):
    """Sorts only by the columns in ``sortable_by``. Django only hides the links of the other
    columns, and sorts the whole table by any column in the URL.

    Filters without an index look at a ``Window`` of the table. Actions do not: they are for all
    rows that match.
    """

    before: str | None = None
    # The number of rows that were looked at, and the query string that leads further back.
    looked_at: int | None = None
    further: str | None = None

    def get_filters_params(self, params: Any = None) -> Any:
        """Return the parameters of filters: all others but where the window begins."""
        self.before = self.params.pop(BEFORE, self.before)
        found = super().get_filters_params(params)
        found.pop(BEFORE, None)
        return found

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        """Return a query string. Other pages of the same list stay in its window."""
        stays = self.before is not None and {PAGE_VAR, ALL_VAR}.intersection(new_params or ())
        kept = {BEFORE: self.before} if stays else {}
        return str(super().get_query_string({**kept, **(new_params or {})}, remove))

    def get_filters(self, request: HttpRequest) -> Any:
        """Return the filters. None of them may ask for a text that the database cannot contain."""
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters("PostgreSQL has no text with NUL in it")
        return super().get_filters(request)

    def get_results(self, request: HttpRequest) -> None:
        """Find the rows, unless the address asks for what no row can have."""
        if not request.GET:
            super().get_results(request)
            return
        find = partial(self._look, request)
        asked: Any = self.model_admin
        try:
            asked.undone_if_refused(request, find)
        except (DataError, ValueError, OverflowError) as error:
            raise IncorrectLookupParameters(str(error)) from error

    def _look(self, request: HttpRequest) -> None:
        window = self._window(request)
        if window is None:
            super().get_results(request)
            return
        end = window.end()
        self.queryset = window.among(self.queryset, end)
        super().get_results(request)
        if end is None:
            return
        self.looked_at = window.most
        self.further = super().get_query_string({BEFORE: written(end)}, [PAGE_VAR, ALL_VAR])
        if not isinstance(self.result_count, RoughCount):
            self.result_count = RoughCount(self.result_count, _("at least %(number)s"))

    def _window(self, request: HttpRequest) -> Window | None:
        """Return what to look at, ``None`` if an index finds the rows."""
        field = str(self.get_ordering(request, self.queryset)[0]).removeprefix("-")
        asked: Any = self.model_admin
        everything = asked.in_order_of(request, field)
        if everything is None or self.query:
            return None
        if field == "pk" and not needs_window(self.filter_specs, request.GET):
            return None
        before = None if self.before is None else read(self.model, field, self.before)
        return Window(everything.using(self.queryset.db), field, before)

    def get_ordering_field(self, field_name: Any) -> Any:
        """Return what to sort by for a column, or ``None`` if it is not sortable."""
        sortable = field_name in (self.sortable_by or ())
        return super().get_ordering_field(field_name) if sortable else None


class LargeTableAdmin(RefusalsInWords):
    """Lists rows by descending primary key, without counting the table."""

    ordering = ("-pk",)
    sortable_by: ClassVar[Any] = ()
    paginator = LargeTablePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "admin/jobreaper/change_list.html"

    class Media:
        css = {"all": ["jobreaper/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list class that respects ``sortable_by``."""
        return LargeTableChangeList

    def in_order_of(self, request: HttpRequest, field: str) -> models.QuerySet[Any] | None:
        """Return the rows of which a list sorted by a field looks at the newest ones; ``None`` if
        no index has that order.
        """
        rows: models.QuerySet[Any] = self.model._base_manager.all()
        return rows if field == "pk" else None


class ReadOnlyAdmin(RecordAdmin, LargeTableAdmin):
    """For records, which can be read but not changed."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return ``False``, for superusers too."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``, for superusers too."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``, for superusers too."""
        return False
