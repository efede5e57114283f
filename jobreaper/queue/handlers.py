"""Handlers: the functions that ``manage.py work`` and the tick endpoint run, by type of job.

::

    @job_handler("mail")
    def send(job, lease): ...

Handlers are in modules ``handlers`` or ``tasks`` of the installed apps, which are imported to find
them. Other packages, such as Celery, are further sources: see ``Source``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.apps import apps
from django.conf import settings
from django.db import models
from django.utils.module_loading import module_has_submodule

from jobreaper import values
from jobreaper.db import without_details
from jobreaper.exceptions import ConfigurationError
from jobreaper.models import Job
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.timetable import Timetable, timetable

logger = logging.getLogger("jobreaper.handlers")

Handler = Callable[[Any, Lease], object]
H = TypeVar("H", bound=Handler)


class Source(Protocol):
    """A source of handlers besides ``job_handler()``."""

    def handlers(self, model: type[models.Model]) -> Mapping[str, Handler]:
        """Return handlers for the jobs of ``model`` by type, or by stage if it has no types."""
        ...

    def stages(self, model: type[models.Model]) -> Collection[str | None]:
        """Return the stages of ``model`` whose jobs it runs in its own processes. ``None`` means
        every other stage.
        """
        ...

    def can_find(self) -> bool:
        """Return whether ``find()`` is worth a call."""
        ...

    def find(self, type: str, model: type[models.Model]) -> Handler | None:
        """Return the handler of a type that ``handlers()`` does not know yet, if there is one."""
        ...


_handlers: Final[dict[str, Handler]] = {}
_timetables: Final[dict[str, Timetable]] = {}
_sources: Final[list[Source]] = []


def add_source(source: Source) -> None:
    """Add a source. Adding it again has no effect."""
    if source not in _sources:
        _sources.append(source)


def job_handler(
    type: str, *, cron: str | None = None, timezone: str | None = None, **schedule: Any
) -> Callable[[H], H]:
    """Return a decorator that makes a function the handler of ``type``.

    The function receives the job and its lease. When it returns, the job is finished; when it
    raises an exception, this attempt has failed. To commit its own writes and the end of the job in
    one transaction, the function calls ``lease.finish()`` in that transaction.

    With ``cron``, such as ``"0 6 * * 1-5"``, jobs of this type are made at these times, in
    ``timezone`` or else in ``TIME_ZONE``. ``schedule`` are further options of a schedule, the keys
    of ``JOBREAPER["SCHEDULE"]``.

    Raises:
        ConfigurationError: another function handles the type already, no job can have this type, or
            the schedule is invalid.
    """

    given = {"cron": cron, "timezone": timezone, **schedule}
    options = {key: value for key, value in given.items() if value is not None}

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
        if options:
            _timetables[type] = _timetable(function, type, options)
        return function

    return register


def timetables() -> Mapping[str, Timetable]:
    """Return the schedules that handlers declare, by type. The first call imports the apps'
    modules.
    """
    import_handlers()
    return _timetables


def _timetable(function: Handler, type: str, options: Mapping[str, Any]) -> Timetable:
    try:
        return timetable(type, options, timezone=settings.TIME_ZONE)
    except ValueError as error:
        said = f"the schedule of {_place(function)} is bad: {error}"
        raise ConfigurationError(said) from None


def handlers(model: type[models.Model] = Job) -> Mapping[str, Handler]:
    """Return all handlers for the jobs of a table by type, or by stage if it has no types. The
    first call imports the apps' modules.
    """
    import_handlers()
    found: dict[str, Handler] = {}
    for source in _sources:
        found.update(source.handlers(model))
    return {**found, **_handlers} if model is Job else found


def kind_of(lease: Lease) -> str:
    """Return by what the handler of a claimed job is looked up."""
    return holding_of(lease).table.kind(lease.job)


def can_find() -> bool:
    """Return whether handlers may be found that ``handlers()`` does not know yet."""
    return any(source.can_find() for source in _sources)


def find(type: str, model: type[models.Model] = Job) -> Handler | None:
    """Return the handler of a type that ``handlers()`` does not know yet, if there is one."""
    return next((found for source in _sources if (found := source.find(type, model))), None)


def stages_elsewhere(model: type[models.Model]) -> set[str | None]:
    """Return the stages of ``model`` whose jobs run in other processes than ``manage.py work``.
    ``None`` means every other stage.
    """
    return {stage for source in _sources for stage in source.stages(model)}


def is_async(handler: Handler) -> bool:
    """Return whether a handler is a coroutine function."""
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def plain(handler: Handler) -> Handler:
    """Return a function that waits for the coroutine of an ``async def``; other handlers as they
    are.
    """
    return async_to_sync(handler) if is_async(handler) else handler  # type: ignore[arg-type]


def refuse_unrun(name: str, returned: object) -> None:
    """Refuse an awaitable or a generator that nobody awaits or iterates: its code has not run, and
    its job would count as done.

    Raises:
        TypeError: ``returned`` is an awaitable or a generator.
    """
    # To look at what most handlers return would take as long as to call them.
    if returned is None:
        return
    unawaited = inspect.isawaitable(returned) or inspect.isasyncgen(returned)
    if not unawaited and not inspect.isgenerator(returned):
        return
    if isinstance(returned, Coroutine | Generator):
        returned.close()
    why = "is async" if unawaited else "has a yield"
    raise TypeError(f"{name} did not run: it {why}, and a job's function must not")


@cache
def import_handlers() -> None:
    """Import the modules that may contain handlers, once per process."""
    import_modules(modules_of_apps("handlers"))
    # Our own tasks are only for Celery.
    import_modules(name for name in modules_of_apps("tasks") if name != "jobreaper.tasks")


def modules_of_apps(name: str) -> list[str]:
    """Return the modules of that name in the installed apps."""
    return [
        f"{config.name}.{name}"
        for config in apps.get_app_configs()
        if config.module is not None and module_has_submodule(config.module, name)
    ]


def import_modules(modules: Iterable[str]) -> None:
    """Import modules that may declare handlers or tasks, and log those that cannot be imported."""
    for module in modules:
        try:
            import_module(module)
        # A module of another package, perhaps for another queue, must not stop jobs, the
        # dispatcher, or the admin that shows what waits.
        except Exception as error:
            said = "%s could not be imported, so its jobs wait"
            logger.error(said, module, exc_info=without_details(error))


def _place(function: Handler) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
