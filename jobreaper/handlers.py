"""Handlers: the functions that ``manage.py work`` and the tick endpoint run, by type of job.

::

    @job_handler("mail")
    def send(job, lease): ...

They stand in a module ``handlers`` or ``tasks`` of an installed app, which is where they are looked
for. A Celery task whose name is the type is a handler too: a ``LeasedTask`` is called with the job
and its lease, any other with the payload as keyword arguments.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar

from celery import Celery, Task, current_app
from django.apps import apps
from django.utils.module_loading import module_has_submodule

from jobreaper import values
from jobreaper.exceptions import ConfigurationError
from jobreaper.leases import Lease

logger = logging.getLogger(__name__)

Handler = Callable[[Any, Lease], object]
H = TypeVar("H", bound=Handler)

_handlers: Final[dict[str, Handler]] = {}


def job_handler(type: str) -> Callable[[H], H]:
    """Return a decorator that makes a function the handler of ``type``.

    The function is called with the job and its lease. When it returns, the job is finished; when it
    raises, this attempt has failed. A function that must have its own writes and the end of the job
    in one transaction calls ``lease.finish()`` in it.

    Raises:
        ConfigurationError: another function handles the type already, or no job can have it.
    """

    def register(function: H) -> H:
        try:
            values.name(type)
        except ValueError as error:
            raise ConfigurationError(
                f"{_place(function)} cannot handle the type {type!r}: {error}"
            ) from None
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


def refuse_unrun(name: str, returned: object) -> None:
    """Refuse what an ``async def`` or a function with ``yield`` returned: it has not run, and its
    job would count as done.

    Raises:
        TypeError: ``returned`` is an awaitable or a generator.
    """
    is_async = inspect.isawaitable(returned) or inspect.isasyncgen(returned)
    if not is_async and not inspect.isgenerator(returned):
        return
    if isinstance(returned, Coroutine | Generator):
        returned.close()
    why = "is async" if is_async else "has a yield"
    raise TypeError(f"{name} did not run: it {why}, and a job's function must not")


@cache
def _import_handlers() -> None:
    _import(_modules("handlers"))
    import_tasks(current_app)


@cache
def import_tasks(app: Celery) -> None:
    """Import the Celery tasks, which a process that is no Celery worker has not done: the modules
    ``tasks`` of the installed apps, and what the app's settings ``imports`` and ``include`` name.

    Celery's own way to do so sets Django up anew, and the logging of a running worker with it.
    """
    _import([*_modules("tasks"), *app.loader.default_modules])


def _modules(name: str) -> list[str]:
    """Return the modules of that name in the installed apps."""
    return [
        f"{config.name}.{name}"
        for config in apps.get_app_configs()
        if config.module is not None and module_has_submodule(config.module, name)
    ]


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            import_module(module)
        # Some other package's, perhaps for another queue, must not stop ours: not the jobs, not the
        # dispatcher, and not the admin that shows what waits.
        except Exception:
            logger.exception("%s could not be imported, so its jobs wait", module)


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
