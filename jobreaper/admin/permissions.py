"""What an operator may do to a single row, for admins that decide by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from jobreaper.admin.large import COUNTED_ROWS

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]

# The number of rows in memory at once, each with all its fields.
CHUNK: Final = 500


def may(model_admin: ModelAdmin, request: HttpRequest, permission: str, row: Any) -> bool:
    """Return whether the operator has a permission, such as ``"change"``, on this row."""
    return bool(getattr(model_admin, f"has_{permission}_permission")(request, row))


def split(
    model_admin: ModelAdmin, request: HttpRequest, permission: str, rows: Iterable[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the rows on which the operator has the permission, and the others."""
    allowed: list[Any] = []
    refused: list[Any] = []
    for row in rows:
        (allowed if may(model_admin, request, permission, row) else refused).append(row)
    return allowed, refused


def refused(
    model_admin: ModelAdmin, request: HttpRequest, permission: str, rows: QuerySet[Any]
) -> list[Any]:
    """Return the keys of the rows, among as many as a list counts, for which the operator does not
    have the permission.
    """
    if not _is_by_row(model_admin, f"has_{permission}_permission"):
        return []
    looked_at = rows.order_by("pk")[:COUNTED_ROWS].iterator(chunk_size=CHUNK)
    return [row.pk for row in looked_at if not may(model_admin, request, permission, row)]


def _is_by_row(model_admin: ModelAdmin, hook: str) -> bool:
    """Return whether an admin overrides Django's method, which does not look at the row."""
    own = getattr(type(model_admin), hook) is not getattr(admin.ModelAdmin, hook)
    return own or hook in vars(model_admin)
