"""Other people's tables, and what adopts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from jobreaper import tables
from jobreaper.base import LeasedJob
from jobreaper.schema import functions
from jobreaper.tables import adoption
from jobreaper.tables.jobtable import JobTable
from tests.committed import transactional_db
from tests.rows import Rows, Sql

__all__ = ["transactional_db"]

Adopt = Callable[..., JobTable]
Create = Callable[..., Rows]
Make = Callable[..., list[Any]]
Leased = Callable[..., Any]


@pytest.fixture
def executor_jobs(sql: Sql) -> Rows:
    """The table of the document executor, adopted by `project.documents`."""
    return Rows(sql, "executor_jobs")


@pytest.fixture
def create(sql: Sql) -> Iterator[Create]:
    """Make a table or a schema as its owner would; it is dropped with all that hangs on it."""
    made: list[str] = []

    def run(definition: str, *what: str) -> Rows:
        sql(definition)
        made.extend(what)
        return Rows(sql, what[-1].split(" ", 1)[1])

    yield run
    for what in reversed(made):
        sql(f"DROP {what} CASCADE")


@pytest.fixture
def adopt() -> Iterator[Adopt]:
    """`register()` until the test ends."""
    adopted: list[type[models.Model]] = []

    def run(model: type[models.Model], **options: Any) -> JobTable:
        adopted.append(model)
        return tables.register(model, **options)

    yield run
    for model in adopted:
        adoption._tables.pop(model, None)


@pytest.fixture
def make(transactional_db: None) -> Iterator[Make]:
    """Create the tables of a product's models as its migrations do."""
    made: list[type[models.Model]] = []

    def run(*created: type[models.Model]) -> list[Any]:
        with connection.schema_editor() as editor:
            for model in created:
                editor.create_model(model)
                made.append(model)
        return list(created)

    yield run
    with connection.cursor() as cursor:
        for model in reversed(made):
            cursor.execute(f"DROP TABLE {model._meta.db_table} CASCADE")


@contextmanager
def functions_of(table: JobTable) -> Iterator[None]:
    """The functions and views of a table, for as long as the block runs."""
    made = [functions.policies(connection), *functions.of_table(table, connection)]
    for each in made:
        each.create(connection)
    try:
        yield
    finally:
        for each in reversed(made[1:]):
            each.drop(connection)


@pytest.fixture
def leased(make: Make, adopt: Adopt) -> Leased:
    """A job table of one's own, with fields of one's own."""

    def run(**fields: models.Field[Any, Any]) -> Any:
        with isolate_apps("project.documents"):
            owner = type("Owner", (models.Model,), {"Meta": meta_of("owners"), "__module__": "m"})
            for field in fields.values():
                if isinstance(field, models.ForeignKey):
                    field.remote_field.model = owner
            attributes = {**fields, "Meta": meta_of("chores"), "__module__": __name__}
            chore = type("Chore", (LeasedJob,), attributes)
        make(owner, chore)
        adopt(chore)
        return chore

    return run


def meta_of(table: str) -> type:
    return type("Meta", (), {"app_label": "documents", "db_table": table})
