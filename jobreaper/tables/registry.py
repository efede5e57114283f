"""The registry of job tables, and how a program names one."""

from __future__ import annotations

from collections.abc import Iterable

from django.apps import apps
from django.db import models

from jobreaper import values
from jobreaper.base import LeasedJob
from jobreaper.exceptions import UnknownTable
from jobreaper.tables.adoption import _tables, register
from jobreaper.tables.jobtable import JobTable


def job_tables() -> list[JobTable]:
    """Return every job table, in the order of ``INSTALLED_APPS``."""
    return [
        table_of(model)
        for model in apps.get_models()
        if model in _tables or (issubclass(model, LeasedJob) and owner_of(model) is model)
    ]


def owner_of(model: type[LeasedJob]) -> type[models.Model]:
    """Return the model whose table contains the jobs of ``model``: for a proxy, its concrete model;
    for a multi-table child, its parent.
    """
    return model._meta.get_field("status").model


def table_of(model: type[models.Model]) -> JobTable:
    """Return the job table of ``model``.

    Raises:
        UnknownTable: it is neither a ``LeasedJob`` nor registered; or it has no table of its own
            for its jobs.
    """
    concrete = model._meta.concrete_model or model
    if concrete in _tables:
        return _tables[concrete]
    if why := _why_no_table(concrete):
        raise UnknownTable(model._meta.label, (table.name for table in job_tables()), why)
    return register(concrete)


def _why_no_table(model: type[models.Model]) -> str | None:
    if not issubclass(model, LeasedJob):
        return "it is neither a LeasedJob nor registered"
    if model._meta.abstract:
        return "it is abstract"
    if model._meta.swapped:
        return f"it is swapped for {model._meta.swapped}"
    owner = owner_of(model)
    if owner is not model:
        return (
            f"its leases are in the table of {owner._meta.label}, whose claims take the jobs of "
            f"every child: name {owner._meta.label} in its place"
        )
    return None


def named(names: Iterable[str | type[models.Model]] | None) -> list[JobTable]:
    """Return the job tables with these names or models; for ``None``, all of them.

    Raises:
        UnknownTable: there is no such job table.
    """
    if names is None:
        return job_tables()
    known = {table.name: table for table in job_tables()}
    chosen: dict[str, JobTable] = {}
    for name in values.several(names, "tables"):
        table = known.get(name) if isinstance(name, str) else table_of(name)
        if table is None:
            raise UnknownTable(str(name), known)
        chosen[table.name] = table
    return list(chosen.values())


def by_alias(
    tables: Iterable[JobTable] | None = None, *, database: str | None = None
) -> dict[str, list[JobTable]]:
    """Return these job tables, all of them by default, by the alias of the database that holds
    them: the one Django's routers name, or ``database`` for each.
    """
    found: dict[str, list[JobTable]] = {}
    for table in job_tables() if tables is None else tables:
        found.setdefault(database or table.alias, []).append(table)
    return found
