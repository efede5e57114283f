"""Fields that are not read and written as they are: encrypted by SQL, converted by Python."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models
from django.db.models.expressions import Col
from django.test.utils import isolate_apps

from jobreaper import claim, claim_next, tables
from jobreaper.base import LeasedJob
from jobreaper.protocol.batch import claim_group
from jobreaper.tables import adoption, table_of
from tests.rows import Sql


class Scrambled(models.TextField):  # type: ignore[type-arg]
    """Written through a function of SQL; Django 6.1 asks for the parameters as well."""

    placeholder = ""

    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
        return self.placeholder

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> Any:
        return self.placeholder, (value,)


class Selecting(Scrambled):
    """Scrambled by SQL, as `select_format` and `get_placeholder` allow."""

    placeholder = "translate(%s, 'abcdefg', 'bcdefga')"

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        return f"translate({sql}, %s, %s)", [*params, "bcdefga%", "abcdefg5"]


class Decrypting(Col):
    def as_sql(self, compiler: Any, connection: Any) -> Any:
        text, params = super().as_sql(compiler, connection)
        return f"reverse({text})", params


class Reversing(Scrambled):
    """Scrambled by SQL, as an expression of its own in place of the column."""

    placeholder = "reverse(%s)"

    def get_col(self, alias: Any, output_field: Any = None) -> Any:
        return Decrypting(alias, self, output_field)


class Shouting(models.TextField):  # type: ignore[type-arg]
    """Converted by Python."""

    def from_db_value(self, value: Any, *_: Any) -> Any:
        return value if value is None else value.upper()

    def get_prep_value(self, value: Any) -> Any:
        return value if value is None else value.lower()


class Decimals(json.JSONDecoder):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options, parse_float=Decimal)


@pytest.fixture
def secret(transactional_db: None) -> Iterator[Any]:
    with isolate_apps("project.media"):

        class Secret(LeasedJob):
            selecting = Selecting()
            reversing = Reversing()
            shouting = Shouting()
            shouting_all = ArrayField(Shouting())
            decoded = models.JSONField(decoder=Decimals)

            class Meta:
                app_label = "media"
                db_table = "secrets"

        with connection.schema_editor() as editor:
            editor.create_model(Secret)
        try:
            yield Secret
        finally:
            adoption._tables.pop(Secret, None)
            with connection.cursor() as cursor:
                cursor.execute("DROP TABLE secrets")


VALUES = {
    "selecting": "bad cafe",
    "reversing": "from behind",
    "shouting": "LOUD",
    "shouting_all": ["VERY", "LOUD"],
    "decoded": {"price": 1.5},
}


@pytest.mark.parametrize("way", ["claim", "claim_next", "group"])
def test_a_claimed_job_holds_what_the_orm_reads_and_saving_it_harms_nothing(
    way: str, secret: Any, sql: Sql
) -> None:
    assert tables.table_of(secret)
    made = secret.objects.create(**VALUES)
    stored = "SELECT selecting, reversing, shouting, shouting_all, decoded::text FROM secrets"
    [before] = sql(stored)
    assert before == {
        "selecting": "cbe dbgf",
        "reversing": "dniheb morf",
        "shouting": "loud",
        "shouting_all": ["very", "loud"],
        "decoded": '{"price": 1.5}',
    }
    if way == "group":
        [run] = claim_group(table_of(secret), 1)
        lease = run.lease
    elif way == "claim_next":
        [lease] = claim_next(secret)
    else:
        taken = claim(secret, made.pk)
        assert taken is not None
        lease = taken
    assert {name: getattr(lease.job, name) for name in VALUES} == VALUES
    assert isinstance(lease.job.decoded["price"], Decimal)
    lease.job.decoded = VALUES["decoded"]
    lease.job.save()
    assert sql(stored) == [before]
    lease.finish()
