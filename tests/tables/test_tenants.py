"""Scans of tenants that row-level security keeps apart, as one Django product has them."""
# ruff: noqa: DJ008 (models as others have them)

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections, models
from django.test.utils import isolate_apps

import jobreaper
from jobreaper import table_checks
from jobreaper.tables.jobtable import JobTable
from tests.docs import markdown
from tests.rows import Sql
from tests.schema.conftest import reaper
from tests.tables.conftest import Adopt, Make
from tests.tables.products import ago, passed

__all__ = ["reaper"]


pytestmark = pytest.mark.usefixtures("transactional_db")


PAGE = markdown.page("adoption")


@pytest.fixture
def scan(make: Make, sql: Sql) -> Any:
    with isolate_apps("project.documents"):

        class Scan(models.Model):
            id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            tenant_id = models.UUIDField()
            provider = models.CharField(max_length=20)
            state = models.CharField(max_length=20, default="available")
            progress = models.IntegerField(default=0)
            started_at = models.DateTimeField(null=True)
            completed_at = models.DateTimeField(null=True)

            class Meta:
                app_label = "documents"
                db_table = "scans"
                constraints = [
                    models.UniqueConstraint(
                        fields=["tenant_id", "provider"],
                        condition=models.Q(state="available"),
                        name="one_waiting_scan",
                    )
                ]

    [made] = make(Scan)
    sql("ALTER TABLE scans ENABLE ROW LEVEL SECURITY")
    sql("ALTER TABLE scans FORCE ROW LEVEL SECURITY")
    sql(
        "CREATE POLICY tenants ON scans"
        " USING (tenant_id = NULLIF(current_setting('api.tenant_id', true), '')::uuid)"
    )
    return made


def adopt_scans(adopt: Adopt, scan: Any) -> JobTable:
    return adopt(
        scan,
        columns={"status": "state", "claimed_at": "started_at", "finished_at": "completed_at"},
        words={
            "queued": ["available", "scheduled"],
            "processing": "executing",
            "success": "completed",
        },
        ttl="2h",
        reclaim_only=True,
    )


def lost_scan(scan: Any, **fields: Any) -> Any:
    values = {"tenant_id": uuid.uuid4(), "provider": "aws", "progress": 40, **fields}
    return scan.objects.create(state="executing", started_at=ago(hours=3), **values)


@pytest.fixture
def as_role(sql: Sql) -> Iterator[Callable[[str], None]]:
    """Let Django's session go on as a role of this name, with the rights that the page gives it."""
    section = markdown.section(
        markdown.section(PAGE, "Keys, schemas, partitions"), "Row-level security"
    )
    [(_, code)] = markdown.blocks(section, "sql")
    *statements, policy = [each for each in code.split(";\n") if each.strip()]
    role = f"reaper_{connection.settings_dict['NAME']}"

    def named(text: str) -> str:
        return text.replace("TO reaper", f"TO {role}").replace("ROLE reaper", f"ROLE {role}")

    def run(kind: str) -> None:
        for statement in statements:
            sql(named(statement))
        if kind == "policy":
            sql(named(policy))
        if kind == "BYPASSRLS":
            sql(f"ALTER ROLE {role} BYPASSRLS")
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {role}")

    try:
        yield run
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
        sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def w012(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    found = table_checks.check_tables_in_the_database(None, databases=["default"])
    return [f"{message.id} {message.msg}" for message in found]


def passed_blindly(table: JobTable) -> bool:
    """Whether a pass took nothing, and says that this is because it does not see every row."""
    result = jobreaper.reap([table.model])
    [error] = result.all_errors
    assert "row-level security hides rows of scans from the role" in error
    return result.requeued == 0


def test_a_role_that_does_not_see_every_row_is_told_so(
    scan: Any, adopt: Adopt, monkeypatch: pytest.MonkeyPatch, as_role: Callable[[str], None]
) -> None:
    table = adopt_scans(adopt, scan)
    lost_scan(scan)
    assert w012(table, monkeypatch) == []
    as_role("neither")
    [message] = w012(table, monkeypatch)
    assert message.startswith(
        "jobreaper.W012 Job table 'scans' has row-level security, so the role"
    )
    assert passed_blindly(table)


@pytest.mark.parametrize(
    ("policy", "is_told"),
    [
        ("USING (tenant_id IS NULL)", True),
        ("FOR SELECT USING (tenant_id IS NULL)", True),
        ("FOR DELETE USING (tenant_id IS NULL)", False),
        ("USING (true)", False),
    ],
)
def test_a_restrictive_policy_may_hide_what_another_shows(
    scan: Any,
    adopt: Adopt,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    as_role: Callable[[str], None],
    policy: str,
    is_told: bool,
) -> None:
    table = adopt_scans(adopt, scan)
    lost_scan(scan)
    sql(f"CREATE POLICY hiding ON scans AS RESTRICTIVE {policy}")
    as_role("policy")
    assert bool(w012(table, monkeypatch)) is is_told
    assert passed_blindly(table) if is_told else passed(table)


def test_the_role_of_another_alias_of_the_database_is_looked_at_too(
    scan: Any,
    adopt: Adopt,
    monkeypatch: pytest.MonkeyPatch,
    as_role: Callable[[str], None],
    reaper: str,
) -> None:
    table = adopt_scans(adopt, scan)
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    assert table_checks.check_tables_in_the_database(None, databases=[reaper]) == []
    as_role("neither")
    with connection.cursor() as ours, connections[reaper].cursor() as theirs:
        ours.execute("SELECT current_user")
        theirs.execute(f"SET ROLE {ours.fetchone()[0]}")
        ours.execute("RESET ROLE")
    [message] = table_checks.check_tables_in_the_database(None, databases=[reaper])
    assert message.id == "jobreaper.W012"


def test_a_table_in_a_schema_closed_to_the_role_stops_no_check(
    scan: Any,
    adopt: Adopt,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    as_role: Callable[[str], None],
) -> None:
    table = adopt_scans(adopt, scan)
    sql("CREATE SCHEMA closed; CREATE TABLE closed.scans (id int)")
    try:
        as_role("neither")
        with monkeypatch.context() as patch:
            patch.setattr(scan._meta, "db_table", 'closed"."scans')
            assert w012(table, patch) == []
    finally:
        sql("DROP SCHEMA closed CASCADE")


@pytest.mark.parametrize("kind", ["policy", "BYPASSRLS"])
def test_a_role_that_sees_every_row_reaps_for_all_tenants(
    scan: Any,
    adopt: Adopt,
    monkeypatch: pytest.MonkeyPatch,
    as_role: Callable[[str], None],
    kind: str,
) -> None:
    table = adopt_scans(adopt, scan)
    lost = [lost_scan(scan), lost_scan(scan)]
    as_role(kind)
    assert w012(table, monkeypatch) == []
    assert passed(table) == {each.pk: "requeued" for each in lost}
    assert set(scan.objects.values_list("state", "started_at", "progress")) == {
        ("available", None, 40)
    }


def test_a_lost_job_whose_place_was_taken_stops_no_other(scan: Any, adopt: Adopt, sql: Sql) -> None:
    table = adopt_scans(adopt, scan)
    stuck, other = lost_scan(scan), lost_scan(scan)
    scan.objects.create(tenant_id=stuck.tenant_id, provider=stuck.provider)
    result = jobreaper.reap([scan])
    assert result.requeued_ids[table.name] == [other.pk]
    [error] = result.all_errors
    assert str(stuck.pk) in error
    assert "one_waiting_scan" in error
    stuck.refresh_from_db()
    assert stuck.state == "executing"


def test_a_column_that_is_still_to_be_added_is_told(
    scan: Any, adopt: Adopt, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = adopt_scans(adopt, scan)
    monkeypatch.setattr(scan._meta, "managed", False)
    assert w012(table, monkeypatch) == []
    sql("ALTER TABLE scans RENAME started_at TO begun")
    assert w012(table, monkeypatch) == [
        "jobreaper.W013 Job table 'scans' has no column started_at in the database 'default'."
    ]
