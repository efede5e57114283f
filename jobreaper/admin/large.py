"""Admin lists over tables of many millions of rows: nothing here reads a whole table."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from jobreaper import sql
from jobreaper.admin.times import with_any_time
from jobreaper.db import fetch

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    AnyPaginator = Paginator[Any]
else:
    ModelAdmin = admin.ModelAdmin
    AnyPaginator = Paginator

# Counting this many rows takes milliseconds; paging further back than this finds nothing that a
# filter would not find sooner.
COUNTED_ROWS: Final = 10_000


class RoughCount(int):
    """A number of rows that was not counted to the end. Django prints it in words wherever it shows
    how many rows a list has.
    """

    def __new__(cls, number: int, words: str) -> RoughCount:
        self = super().__new__(cls, number)
        self.words = words
        return self

    words: str

    def __str__(self) -> str:
        return self.words % {"number": f"{int(self):,}"}


def count(rows: models.QuerySet[Any]) -> int:
    """Return how many rows there are: exactly up to ``COUNTED_ROWS``, roughly beyond."""
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
    """Counts no further than ``COUNTED_ROWS`` and offers no page beyond: an OFFSET of millions
    reads millions of rows.
    """

    object_list: models.QuerySet[Any]

    @cached_property
    def count(self) -> int:
        """How many rows there are, roughly where they are many."""
        return count(self.object_list)

    @cached_property
    def num_pages(self) -> int:
        """How many pages can be opened."""
        return min(super().num_pages, ceil(COUNTED_ROWS / self.per_page))

    @property
    def is_cut(self) -> bool:
        """Whether there are rows on no page."""
        return isinstance(self.count, RoughCount)


class LargeTableChangeList(ChangeList):
    """Sorts by what ``sortable_by`` allows. Django hides the other columns' links only, and sorts
    the whole table by any column named in the address.
    """

    def get_filters(self, request: HttpRequest) -> Any:
        """Return the filters, of which none may ask for a text that cannot be in the database."""
        if any("\x00" in value for _, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters("PostgreSQL has no text with NUL in it")
        return super().get_filters(request)

    def get_ordering_field(self, field_name: Any) -> Any:
        """Return what to sort by for a column, ``None`` where it is not to be sorted by."""
        sortable = field_name in (self.sortable_by or ())
        return super().get_ordering_field(field_name) if sortable else None


class LargeTableAdmin(ModelAdmin):
    """Lists in the order of the primary key, the last one first, without counting the table."""

    ordering = ("-pk",)
    sortable_by: ClassVar[Any] = ()
    paginator = LargeTablePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "admin/jobreaper/change_list.html"

    class Media:
        css = {"all": ["jobreaper/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Return the rows; a time that Python cannot hold is a text in them."""
        return with_any_time(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list class that keeps to ``sortable_by``."""
        return LargeTableChangeList


class ReadOnlyAdmin(LargeTableAdmin):
    """For what is on record: to be read, and changed by nobody."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return ``False``, for superusers too."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``, for superusers too."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``, for superusers too."""
        return False
