"""Values as the database has them, and as Python does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


def converters(
    connection: BaseDatabaseWrapper, field: models.Field[Any, Any]
) -> list[tuple[Any, Any]]:
    """Return what makes Python's value of a field from the database's, as the ORM does: functions
    to call one after another, each with the column to pass to it.
    """
    column = field.get_col(field.model._meta.db_table)
    return [
        (convert, column)
        for convert in (
            *connection.ops.get_db_converters(column),
            *column.get_db_converters(connection),
        )
    ]


def array_of(values: Iterable[UUID | float | str]) -> str:
    """Return an array as psycopg would write it, in a tenth of the time, because these values need
    no quotes. A text is a UUID in hexadecimal digits.
    """
    return f"{{{','.join(map(str, values))}}}"


@lru_cache
def array_of_texts(texts: tuple[str, ...]) -> str:
    """Return an array as psycopg would write it, written only once."""
    quoted = ('"' + re.sub(r'(["\\])', r"\\\1", text) + '"' for text in texts)
    return "{" + ",".join(quoted) + "}"
