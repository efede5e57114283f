"""Which jobs wait, and assertions about them whose messages can be read."""

from __future__ import annotations

import json
from typing import Any, NoReturn, Self

from django.db import models

from jobreaper.models import Job
from jobreaper.states import Status
from jobreaper.tables import table_of

_MOST_SHOWN = 20
_LONGEST_SHOWN = 200


class Enqueued:
    """The queued jobs of a table. As a context manager, those that the block enqueues."""

    def __init__(self, model: type[models.Model]) -> None:
        self._model = model
        self._before: set[Any] = set()

    def __enter__(self) -> Self:
        self._before = {job.pk for job in self.all()}
        return self

    def __exit__(self, *_: object) -> None: ...

    def all(self, **wanted: Any) -> list[Any]:
        """Return the jobs with these values, oldest first. A dict, such as ``payload``, needs to
        have only the keys that you name.
        """
        table = table_of(self._model)
        rows = self._model._base_manager.using(table.alias)
        queued = rows.filter(status=table.word(Status.QUEUED)).order_by("pk")
        return [job for job in queued if job.pk not in self._before and _has(job, wanted)]

    def one(self, **wanted: Any) -> Any:
        """Return the only job with these values.

        Raises:
            AssertionError: there is none, or there are several.
        """
        found = self.all(**wanted)
        if len(found) != 1:
            self._complain(wanted, "one queued job", f"{len(found)} were found")
        return found[0]

    def none(self, **wanted: Any) -> None:
        """Return if no job has these values.

        Raises:
            AssertionError: there is one.
        """
        if found := self.all(**wanted):
            self._complain(wanted, "no queued job", f"{len(found)} were found")

    def number(self, expected: int, **wanted: Any) -> list[Any]:
        """Return the jobs with these values, which are ``expected`` in number.

        Raises:
            AssertionError: they are more or fewer.
        """
        found = self.all(**wanted)
        if len(found) != expected:
            self._complain(wanted, f"{expected} queued jobs", f"{len(found)} were found")
        return found

    def _complain(self, wanted: dict[str, Any], expected: str, found: str) -> NoReturn:
        values = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        jobs = self.all()
        lines = [f"  {_shown(job)}" for job in jobs[:_MOST_SHOWN]] or ["  (none)"]
        if len(jobs) > _MOST_SHOWN:
            lines.append(f"  ... and {len(jobs) - _MOST_SHOWN} more")
        of = f" with {values}" if values else ""
        raise AssertionError(
            "\n".join([f"expected {expected}{of}, and {found}. Queued are:", *lines])
        )


def enqueued(model: type[models.Model] = Job) -> Enqueued:
    """Return the queued jobs of a table, for assertions::

    with enqueued() as jobs:
        sign_up("ann@example.org")
    jobs.one(type="mail", payload={"to": "ann@example.org"})
    """
    return Enqueued(model)


def _has(job: Any, wanted: dict[str, Any]) -> bool:
    return all(_matches(getattr(job, name), value) for name, value in wanted.items())


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(value, dict):
        return all(name in value and _matches(value[name], part) for name, part in wanted.items())
    return bool(value == wanted)


def _shown(job: Any) -> str:
    names = ("type", "stage", "queue", "priority", "next_earliest_run_at", "payload")
    values = {name: getattr(job, name) for name in names if getattr(job, name, None) is not None}
    shown = (f"{name}={_short(value)}" for name, value in values.items())
    return f"{job.pk}: {' '.join(shown)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
