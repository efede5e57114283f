"""System checks of presence: whether workers can hold it, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.db import Error, connections

from jobreaper import conf, sql
from jobreaper.db import fetch, in_words, postgresql_among
from jobreaper.exceptions import ConfigurationError
from jobreaper.findings import check, database_check, error, warning
from jobreaper.tables import by_alias


@check
def check_routes() -> Iterator[CheckMessage]:
    """Report E009: ``PRESENCE_DATABASE`` names what is no database, or one for several."""
    routes = _settings().presence_database
    here = sorted(by_alias())
    if isinstance(routes, str) and len(here) > 1:
        yield _wrong(
            f"PRESENCE_DATABASE names the database {routes!r}, and job tables are in several: "
            f"{', '.join(here)}.",
            "Use a dict from each of their aliases to the one that connects directly.",
        )
    named = [*routes, *routes.values()] if isinstance(routes, Mapping) else [routes]
    for alias in sorted({name for name in named if name} - {*connections}):
        yield _wrong(
            f"PRESENCE_DATABASE names the database {alias!r}, which is not in DATABASES.",
            f"It knows {', '.join(connections)}.",
        )
    for alias in sorted({name for name in named if name} & {*connections}):
        if (vendor := connections[alias].vendor) != "postgresql":
            yield _wrong(
                f"PRESENCE_DATABASE names the database {alias!r}, which is {vendor}.",
                "Name an alias that leads to the jobs, which are in PostgreSQL.",
            )


@database_check
def check_sessions(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report W018 (workers reach their database through a pooler) and E009
    (``PRESENCE_DATABASE`` leads to another one).
    """
    settings = _settings()
    if not settings.presence_grace_sec or check_routes():
        return
    asked = postgresql_among({*by_alias()} & {*(databases or ())})
    for alias in sorted(connection.alias for connection in asked):
        yield from _check_session(alias, settings.presence_alias(alias))


def _check_session(alias: str, route: str) -> Iterator[CheckMessage]:
    try:
        is_direct, *there = _look_at(route)
        _, *here = _look_at(alias)
    except Error as error:
        yield _wrong(
            f"PRESENCE_DATABASE names {route!r}, which does not answer: {in_words(error)}.",
            "Workers hold no presence as long as they cannot connect there.",
        )
        return
    if there != here:
        yield _wrong(
            f"PRESENCE_DATABASE names {route!r}, which is another database than {alias!r}: nobody "
            "looks there for workers that are gone.",
            "Name an alias that leads to the same database of the same server.",
        )
    elif not is_direct:
        yield warning(
            "W018",
            f"The connection {route!r} goes through a pooler: workers hold no presence, and one "
            "that is killed is noticed only when its leases run out.",
            "Name an alias that connects directly in PRESENCE_DATABASE.",
        )


def _look_at(alias: str) -> tuple[Any, ...]:
    connection = connections[alias]
    connection.ensure_connection()
    params = {"backend_pid": connection.connection.info.backend_pid}
    [row] = fetch(connection, sql.render("statements/presence_route"), params)
    return row


def _wrong(what: str, hint: str) -> CheckMessage:
    return error(
        "E009",
        what,
        f"{hint}",
    )


def _settings() -> conf.Settings:
    try:
        return conf.settings()
    except ConfigurationError:  # there are checks for that
        return conf.Settings()
