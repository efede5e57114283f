"""As much of PromQL as it takes to see what an expression asks for."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_BY = re.compile(r"\bby\s*\(([^)]*)\)")
_WITHOUT = re.compile(r"\bwithout\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"\b([a-zA-Z_]\w*)\b(?!\s*\()(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


class Selector(NamedTuple):
    """A metric's name and what its labels must be: pairs of label and operator with value."""

    name: str
    matchers: dict[str, tuple[str, str]]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield the metrics that an expression reads."""
    for name, matchers in _SELECTOR.findall(_RANGE.sub("", _GROUPING.sub("", expression))):
        if name not in _OPERATORS:
            found = _MATCHER.findall(matchers)
            yield Selector(name, {label: (operator, value) for label, operator, value in found})


def names(expression: str) -> set[str]:
    """Return the names of those metrics."""
    return {selector.name for selector in selectors(expression)}


def groupings(expression: str) -> list[set[str]]:
    """Return the labels of each grouping."""
    return _labels(_GROUPING, expression)


def labels_of_result(expression: str, served: set[str]) -> set[str]:
    """Return the labels that are left of those which are served."""
    dropped = set().union(*_labels(_WITHOUT, expression))
    kept = _labels(_BY, expression)
    return (set.union(*kept) if kept else served) - dropped


def _labels(grouping: re.Pattern[str], expression: str) -> list[set[str]]:
    return [set(re.findall(r"\w+", labels)) for labels in grouping.findall(expression)]
