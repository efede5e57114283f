"""Globs of paths: ``*``, ``?`` and ``[…]`` stay within a name, ``**`` stands for any number of
directories, also none. At the end it stands for everything below.

``PurePath.full_match()`` does the same, from Python 3.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

_ANY_DEPTH: Final = "**"


class Globs:
    """Several globs, of which one has to match."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._globs = [tuple(part for part in glob.split("/") if part) for glob in globs]

    def match(self, path: str) -> bool:
        """Return whether one of the globs matches ``path``, which is relative."""
        names = path.split("/")
        return any(_match(names, glob) for glob in self._globs)


def _match(names: list[str], glob: tuple[str, ...]) -> bool:
    """Go through the names. Where they stop to match, let the last ``**`` take one more of them:
    an earlier one never needs more.
    """
    name = part = 0
    retry: tuple[int, int] | None = None
    while name < len(names):
        if part < len(glob) and glob[part] == _ANY_DEPTH:
            part += 1
            retry = name, part
        elif part < len(glob) and fnmatchcase(names[name], glob[part]):
            name += 1
            part += 1
        elif retry is not None:
            name, part = retry[0] + 1, retry[1]
            retry = name, part
        else:
            return False
    return part == len(glob)
