"""Finds what refers to the jobs of a table: foreign keys in its database, relations that only
Django knows, and generic relations that the model declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import SQL, Composable, Identifier, Literal

from jobreaper import sql
from jobreaper.db import fetch
from jobreaper.exceptions import ConfigurationError
from jobreaper.tables import JobTable


class Reference(NamedTuple):
    """A table whose rows refer to jobs: by pairs of a column and the job's column."""

    table: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    # Whether it is the jobs' own table.
    is_own: bool = False
    # Further conditions on a row ``other`` of it.
    only: tuple[Composable, ...] = ()


def nothing_refers(connection: BaseDatabaseWrapper, table: JobTable) -> Composable:
    """Return the condition that no row refers to ``job``, except the row itself.

    Raises:
        ConfigurationError: rows in another database may refer to it.
    """
    found = [*_of_database(connection, table)]
    known = {(reference.table[-1], frozenset(reference.columns)) for reference in found}
    for reference in (*_of_models(connection, table), *_generic(connection, table)):
        if (reference.table[-1], frozenset(reference.columns)) not in known:
            found.append(reference)
    return SQL(" AND ").join([SQL("true"), *(_condition(table, each) for each in found)])


def _condition(table: JobTable, reference: Reference) -> Composable:
    same = [
        SQL("other.{} = job.{}").format(Identifier(own), Identifier(referred))
        for own, referred in reference.columns
    ]
    if reference.is_own:
        key = Identifier(table.key_columns[0])
        same.append(SQL("other.{0} <> job.{0}").format(key))
    return SQL("NOT EXISTS (SELECT FROM {} AS other WHERE {})").format(
        Identifier(*reference.table), SQL(" AND ").join([*same, *reference.only])
    )


def _of_database(connection: BaseDatabaseWrapper, table: JobTable) -> Iterator[Reference]:
    name = Identifier(*table.name_parts).as_string(None)
    for schema, referring, own, referred, is_own in fetch(
        connection, sql.render("statements/foreign_keys"), {"table": name}
    ):
        yield Reference((schema, referring), tuple(zip(own, referred, strict=True)), is_own)


def _of_models(connection: BaseDatabaseWrapper, table: JobTable) -> Iterator[Reference]:
    for relation in table.model._meta.get_fields(include_parents=False, include_hidden=True):
        # The table between two models in a many-to-many relation has its own foreign keys.
        if not relation.auto_created or relation.concrete or relation.many_to_many:
            continue
        pairs: Any = relation.field.related_fields  # type: ignore[union-attr]
        referring = pairs[0][0].model
        _refuse_elsewhere(connection, table, referring)
        yield Reference(
            _name(referring),
            tuple((own.column, to.column) for own, to in pairs),
            referring is table.model,
        )


def _generic(connection: BaseDatabaseWrapper, table: JobTable) -> Iterator[Reference]:
    """Yield what Django would delete with a job. Neither Django nor this package deletes rows with
    a generic key if there is no relation back: a row about a deleted job may be kept on purpose.
    """
    if not apps.is_installed("django.contrib.contenttypes"):
        return
    from django.contrib.contenttypes.fields import GenericRelation
    from django.contrib.contenttypes.models import ContentType

    for relation in table.model._meta.private_fields:
        if not isinstance(relation, GenericRelation):
            continue
        referring: Any = relation.related_model
        _refuse_elsewhere(connection, table, referring)
        of_type = referring._meta.get_field(relation.content_type_field_name)
        key = referring._meta.get_field(relation.object_id_field_name)
        _refuse_converted(table, key)
        job_model = table.model._meta
        yield Reference(
            _name(key.model),
            (),
            only=(
                SQL("other.{} = (SELECT id FROM {} WHERE app_label = {} AND model = {})").format(
                    Identifier(of_type.column),
                    Identifier(*_name(ContentType)),
                    Literal(job_model.app_label),
                    Literal(job_model.model_name),
                ),
                _same_key(connection, table, key),
            ),
        )


def _refuse_converted(table: JobTable, key: models.Field[Any, Any]) -> None:
    if table.converts_keys and type(key) is not type(table.pk):
        raise ConfigurationError(
            f"{table.name} is not pruned: {key.model._meta.label}.{key.name} has the keys of its "
            f"jobs as Python does, and the database cannot compare them: make it a "
            f"{type(table.pk).__name__}"
        )


def _same_key(
    connection: BaseDatabaseWrapper, table: JobTable, key: models.Field[Any, Any]
) -> Composable:
    own, referred = Identifier(str(key.column)), Identifier(table.key_columns[0])
    if key.db_type(connection) == table.pk.rel_db_type(connection):
        return SQL("other.{} = job.{}").format(own, referred)
    # A text, as an index contains it, or a value that looks the same.
    is_text = isinstance(key, models.CharField | models.TextField)
    pattern = SQL("other.{} = job.{}::text") if is_text else SQL("other.{}::text = job.{}::text")
    return pattern.format(own, referred)


def _name(model: type[models.Model]) -> tuple[str, ...]:
    return tuple(JobTable(model=model).name_parts)


def _refuse_elsewhere(
    connection: BaseDatabaseWrapper, table: JobTable, referring: type[models.Model]
) -> None:
    alias = router.db_for_write(referring)
    there, here = connections[alias].settings_dict, connection.settings_dict
    if alias != connection.alias and any(there[k] != here[k] for k in ("HOST", "PORT", "NAME")):
        raise ConfigurationError(
            f"{table.name} is not pruned: {referring._meta.label}, which refers to its jobs, is in "
            f"the database {alias!r}, and {connection.alias!r} cannot look into it"
        )
