"""Fields that Python has otherwise than the database, as packages for prefixed, short, hashed and
encrypted keys have them.
"""

import base64
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.core.exceptions import ValidationError
from django.db import models


class Ticket(models.IntegerField):  # type: ignore[type-arg]
    """A number that Python has as text, as in "T-5"."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        return None if value is None else f"T-{value}"

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else int(str(value).removeprefix("T-"))


class Mark:
    """A key that no JSON carries."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mark) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __str__(self) -> str:
        return f"{self.number:x}!"


class Hashed(models.BigIntegerField):  # type: ignore[type-arg]
    """A number that Python has as an object, and people as its text."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        return None if value is None else Mark(value)

    def to_python(self, value: Any) -> Any:
        if value is None or isinstance(value, Mark):
            return value
        try:
            return Mark(int(str(value).removesuffix("!"), 16))
        except ValueError as error:
            raise ValidationError("no mark") from error

    def get_prep_value(self, value: Any) -> Any:
        mark = self.to_python(value)
        return None if mark is None else mark.number


class Encrypted(models.IntegerField):  # type: ignore[type-arg]
    """A number that is another number in the database."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        return None if value is None else value ^ 0x5EED

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else int(value) ^ 0x5EED


class Short(models.UUIDField):  # type: ignore[type-arg]
    """A UUID that Python has as 22 characters."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        return self.to_python(value)

    def to_python(self, value: Any) -> Any:
        if value is None or (isinstance(value, str) and len(value) == 22):
            return value
        uid = super().to_python(value)
        return base64.urlsafe_b64encode(uid.bytes).decode().rstrip("=")

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if isinstance(value, str) and len(value) == 22:
            value = UUID(bytes=base64.urlsafe_b64decode(f"{value}=="))
        return value


class Prefixed(models.TextField):  # type: ignore[type-arg]
    """A text to which the SELECT adds a prefix that a parameter has not."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        return f"(%s || {sql})", ("100%_", *params)

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else str(value).removeprefix("100%_")


class Kind(NamedTuple):
    """A kind of key: the field, a key as Python has it, and as events have it."""

    field: Callable[..., Any]
    key: Any
    text: str


UID = uuid4()
SHORT = base64.urlsafe_b64encode(UID.bytes).decode().rstrip("=")

KINDS = {
    "prefix": Kind(Ticket, "T-5", "5"),
    "object": Kind(Hashed, Mark(255), "255"),
    "number": Kind(Encrypted, 7, str(7 ^ 0x5EED)),
    "short": Kind(Short, SHORT, str(UID)),
    "select": Kind(Prefixed, "100%_a", "a"),
}
