"""Handlers: the functions that ``manage.py work`` and the tick endpoint run, by type of job.

::

    @job_handler("mail")
    def send(job, lease): ...

They stand in a module ``handlers`` or ``tasks`` of an installed app, which is where they are looked
for. A Celery task whose name is the type is a handler too: a ``LeasedTask`` is called with the job
and its lease, any other with the payload as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from celery import Task, current_app
from django.utils.module_loading import autodiscover_modules

from jobreaper.exceptions import ConfigurationError
from jobreaper.leases import Lease

Handler = Callable[[Any, Lease], object]
H = TypeVar("H", bound=Handler)

_handlers: Final[dict[str, Handler]] = {}


def job_handler(type: str) -> Callable[[H], H]:
    """Return a decorator that makes a function the handler of ``type``.

    The function is called with the job and its lease. When it returns, the job is finished; when it
    raises, this attempt has failed. A function that must have its own writes and the end of the job
    in one transaction calls ``lease.finish()`` in it.

    Raises:
        ConfigurationError: another function handles the type already.
    """

    def register(function: H) -> H:
        known = _handlers.setdefault(type, function)
        if known is not function and _place(known) != _place(function):
            raise ConfigurationError(
                f"{_place(function)} cannot handle {type!r}: {_place(known)} does already"
            )
        _handlers[type] = function
        return function

    return register


def handlers() -> Mapping[str, Handler]:
    """Return every handler by type; the apps' modules are imported for it the first time."""
    _import_handlers()
    return {**_celery_tasks(), **_handlers}


@cache
def _import_handlers() -> None:
    autodiscover_modules("handlers", "tasks")
    current_app.loader.import_default_modules()


def _celery_tasks() -> dict[str, Handler]:
    # Celery's own, such as celery.chord, are no work of anybody's.
    return {
        name: _call_of(task)
        for name, task in current_app.tasks.items()
        if not name.startswith("celery.")
    }


def _call_of(task: Task[..., Any]) -> Handler:
    if hasattr(task, "job_model"):
        return task.run
    return lambda job, lease: task(**job.payload)


def _place(function: Handler) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
