"""Schemas in which others may create, and sessions that are moved from one to another."""

from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connections

from jobreaper import model_checks
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


def told() -> list[CheckMessage]:
    return model_checks.check_schemas(None, databases=["default"])


def test_a_schema_of_ones_own_passes(role: str, sql: Sql) -> None:
    sql(f"GRANT USAGE ON SCHEMA public TO {role}")
    assert told() == []
    assert model_checks.check_schemas(None, databases=None) == []


@pytest.mark.parametrize("everybody", [True, False])
def test_a_role_that_may_create_functions_is_named(role: str, sql: Sql, everybody: bool) -> None:
    whom = "PUBLIC" if everybody else role
    sql(f"GRANT CREATE ON SCHEMA public TO {whom}")
    try:
        [message] = told()
    finally:
        sql(f"REVOKE CREATE ON SCHEMA public FROM {whom}")
    assert message.id == "jobreaper.W023"
    assert message.msg.startswith(f"{whom} may create functions in the schema 'public'")
    assert f"FROM {whom}" in str(message.hint)


def test_the_owner_of_a_job_table_may_create(role: str, sql: Sql) -> None:
    """It could put a trigger on the table as well."""
    [owner] = sql("SELECT relowner::regrole::text FROM pg_class WHERE oid = 'jobs'::regclass")
    sql(f"GRANT CREATE ON SCHEMA public TO {role}; ALTER TABLE jobs OWNER TO {role}")
    try:
        assert told() == []
    finally:
        sql(f"ALTER TABLE jobs OWNER TO {owner['relowner']}")


@pytest.mark.parametrize("name", ["set_schema", "set_tenant"])
def test_sessions_of_tenants_are_a_warning(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert model_checks.check_sessions(None) == []

    def move(self: Any, schema: str) -> None: ...

    monkeypatch.setattr(type(connections["default"]), name, move, raising=False)
    [message] = model_checks.check_sessions(None)
    assert message.id == "jobreaper.W024"
    assert "'default'" in message.msg
