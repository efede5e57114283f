"""System checks of databases that were, or are, the target of logical replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.apps import apps
from django.core.checks import CheckMessage
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Identifier, Literal

from jobreaper import sql
from jobreaper.db import fetch, postgresql_among
from jobreaper.findings import database_check, warning
from jobreaper.models import JobEvent
from jobreaper.tables import by_alias


@database_check
def check_replication(databases: Sequence[str] | None) -> Iterator[CheckMessage]:
    """Report W025 (a subscription writes to job tables) and W026 (sequences that are behind)."""
    with_jobs = by_alias()
    own = apps.get_app_config(JobEvent._meta.app_label).get_models()
    for connection in postgresql_among(databases):
        if connection.alias not in with_jobs:
            continue
        models = {*own, *(table.model for table in with_jobs[connection.alias])}
        keys = {
            Identifier(*model._meta.db_table.strip('"').split('"."')).as_string(None): str(
                model._meta.pk.column
            )
            for model in models
            if model._meta.pk is not None and model._meta.pk.column
        }
        yield from _subscriptions(connection, sorted(keys))
        yield from _sequences(connection, keys)


def _subscriptions(connection: BaseDatabaseWrapper, tables: list[str]) -> Iterator[CheckMessage]:
    for name, targets in fetch(connection, sql.render("statements/subscribed"), {"tables": tables}):
        yield warning(
            "W025",
            f"The subscription {name!r} writes to {targets} in the database "
            f"{connection.alias!r}. If a reaper or a worker writes there too, replication stops.",
            "Run neither before this database has taken over; then drop the subscription.",
        )


def _sequences(connection: BaseDatabaseWrapper, keys: dict[str, str]) -> Iterator[CheckMessage]:
    given = {"tables": list(keys), "keys": list(keys.values())}
    for table, key in sorted(fetch(connection, sql.render("statements/sequences"), given)):
        parts = {
            "table_in_text": Literal(table),
            "key_in_text": Literal(key),
            "table": SQL(table),
            "key": Identifier(key),
        }
        for sequence, highest in fetch(connection, sql.render("statements/behind", parts), {}):
            remedy = SQL("SELECT setval({}, (SELECT max({}) FROM {}))").format(
                Literal(sequence), parts["key"], parts["table"]
            )
            yield warning(
                "W026",
                f"The sequence {sequence} in the database {connection.alias!r} is behind the "
                f"highest {key} of {table}, {highest}: an INSERT that takes its next value fails.",
                f"{remedy.as_string(None)};",
            )
