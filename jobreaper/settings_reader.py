"""Reading single settings: from the dict or the environment, with every problem kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """A problem with the settings: a stable check id, what is wrong, what to do."""

    id: str
    message: str
    hint: str

    @property
    def is_error(self) -> bool:
        """Return whether the settings cannot be used at all."""
        return self.id.startswith("E")


class Reader:
    """Reads one value at a time and collects problems instead of stopping at the first."""

    def __init__(self, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.given = given
        self.environment = environment
        self.problems: list[Problem] = []

    def bad_value(self, name: str, value: object, why: object, *, is_secret: bool = False) -> None:
        what = "a bad value" if is_secret else f"the bad value {value!r}"
        self.problems.append(
            Problem(
                "E002",
                f"{name} has {what}: {why}.",
                f"Correct {name}.",
            )
        )

    def unknown(self, where: str, key: object, known: Iterable[str]) -> None:
        names = list(known)
        nearest = get_close_matches(str(key).upper(), [name.upper() for name in names], n=1)
        by_upper = {name.upper(): name for name in names}
        hint = (
            f"Did you mean {by_upper[nearest[0]]!r}?"
            if nearest
            else f"Valid keys: {', '.join(names)}."
        )
        self.problems.append(Problem("E001", f"{where} has the unknown key {key!r}.", hint))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a key of the dict that is a dict itself, empty if it is not given."""
        value = self.given.get(key, {})
        if isinstance(value, Mapping):
            return value
        self.bad_value(f"JOBREAPER[{key!r}]", value, "it must be a dict")
        return {}

    def value(
        self,
        names: tuple[str, ...],
        parse: Callable[[object], T],
        default: T,
        *,
        variables: tuple[str, ...] | None = None,
        is_secret: bool = False,
    ) -> T:
        """Return the first value given under ``names``, or under ``variables`` in the environment
        if those differ. The message of a problem never contains the value of a secret.
        """
        sources: list[tuple[str, object]] = [
            (f"JOBREAPER[{name!r}]", self.given[name]) for name in names if name in self.given
        ]
        # An empty variable means "not set" in a compose file or a systemd unit.
        sources += [
            (f"environment variable {name}", self.environment[name])
            for name in variables or names
            if self.environment.get(name, "").strip()
        ]
        for name, raw in sources[:1]:
            try:
                return parse(raw)
            except ValueError as error:
                self.bad_value(name, raw, error, is_secret=is_secret)
        return default
