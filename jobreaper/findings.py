"""What system checks are made of: findings, each with a link to its part of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage

Check = Callable[..., list[CheckMessage]]


def check(find: Callable[[], Iterable[CheckMessage]]) -> Check:
    """Make ``find`` a check that asks no database."""

    def run(app_configs: object = None, **_: Any) -> list[CheckMessage]:
        return list(find())

    return checks.register(run, "jobreaper")


def database_check(find: Callable[[Sequence[str] | None], Iterable[CheckMessage]]) -> Check:
    """Make ``find`` a check that asks the databases which are its argument, by alias."""

    def run(
        app_configs: object = None, databases: Sequence[str] | None = None, **_: Any
    ) -> list[CheckMessage]:
        return list(find(databases))

    return checks.register(run, checks.Tags.database)


def error(number: str, problem: str, hint: str, obj: object = None) -> checks.Error:
    """Return a finding that stops ``manage.py``; ``number`` is such as ``"E001"``."""
    return checks.Error(problem, **_more(number, hint, obj))


def warning(number: str, problem: str, hint: str, obj: object = None) -> checks.Warning:
    """Return a finding that stops nothing; ``number`` is such as ``"W001"``."""
    return checks.Warning(problem, **_more(number, hint, obj))


def _more(number: str, hint: str, obj: object) -> dict[str, Any]:
    where = f"See docs/checks.md#{number.lower()}"
    return {"hint": f"{hint} {where}", "obj": obj, "id": f"jobreaper.{number}"}
