"""The part of a large table that a list looks at when no index finds its rows.

A filter without an index reads back through the table until the page is full, which is the whole
table if few rows match. So such a list looks only at the newest rows, says so, and leads further
back from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

# The parameter of the address: only rows before this one are looked at.
BEFORE: Final = "before"

# Rows in the order of the key are near to each other on the disk, those in another order are not.
LOOKED_AT: Final = 100_000
LOOKED_AT_ELSEWHERE: Final = 10_000


@dataclass(frozen=True)
class Window:
    """Rows by a field, newest first: the first ``most`` of ``everything``, or those after
    ``before``.
    """

    everything: models.QuerySet[Any]
    field: str
    before: Any = None

    @property
    def most(self) -> int:
        """How many rows are looked at."""
        return LOOKED_AT if self.field == "pk" else LOOKED_AT_ELSEWHERE

    def end(self) -> Any:
        """Return the value of the last row that is looked at, ``None`` if that is all of them."""
        newest = self._cut(self.everything).order_by(f"-{self.field}")
        found = newest.values_list(self.field, flat=True)[self.most - 1 : self.most]
        return next(iter(found), None)

    def among(self, rows: models.QuerySet[Any], end: Any) -> models.QuerySet[Any]:
        """Return those of the rows that are looked at, if that ends with ``end``."""
        if end is not None:
            return self._cut(rows).filter(**{f"{self.field}__gte": end})
        # Where all are looked at, the field may still have to say so for its index to be used.
        return self._cut(rows).filter(**{f"{self.field}__isnull": False})

    def _cut(self, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
        if self.before is None:
            return rows
        return rows.filter(**{f"{self.field}__lt": self.before})


def read(model: type[models.Model], field: str, text: str) -> Any:
    """Return the value of a field that an address names.

    Raises:
        ValueError: it is none.
    """
    column: Any = model._meta.pk if field == "pk" else model._meta.get_field(field)
    try:
        return column.to_python(text)
    except ValidationError as error:
        raise ValueError(str(error)) from error


def written(value: Any) -> str:
    """Return a value for an address, as ``read()`` reads it."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def needs_window(specs: Iterable[Any], asked: Iterable[str]) -> bool:
    """Return whether filters are set of which none finds its rows by an index."""
    named = set(asked)
    used = [spec for spec in specs if named.intersection(spec.expected_parameters())]
    return bool(used) and not any(getattr(spec, "is_indexed", False) for spec in used)
