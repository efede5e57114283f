"""Models as four Django products have them, managed by Django and with their relations, are adopted
as they are: inherited tables, foreign keys for locks, Celery's words, tenants kept apart.
"""
# ruff: noqa: DJ008 (models as others have them)

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import Error
from django.db import connection, connections, models
from django.test.utils import isolate_apps
from django.utils import timezone

import jobreaper
from jobreaper import checks, installed, tables
from jobreaper.dbobjects import Installed
from jobreaper.exceptions import ConfigurationError
from jobreaper.jobtable import JobTable
from tests.adoption.conftest import Adopt, Make
from tests.docs import markdown
from tests.functions.conftest import reaper
from tests.rows import Sql

__all__ = ["reaper"]

pytestmark = pytest.mark.django_db(transaction=True)

Model = type[models.Model]
States = Callable[[JobTable], dict[str, str]]

PAGE = markdown.page("adoption")


def ago(**span: float) -> Any:
    return timezone.now() - timedelta(**span)


def passed(table: JobTable) -> dict[Any, str]:
    """What a pass did, after a dry run has told the same."""
    outcomes = []
    for dry_run in (True, False):
        result = jobreaper.reap([table.model], dry_run=dry_run)
        assert result.all_errors == []
        outcomes.append(
            {
                **dict.fromkeys(result.requeued_ids[table.name], "requeued"),
                **dict.fromkeys(result.failed_ids[table.name], "failed"),
            }
        )
    assert outcomes[0] == outcomes[1]
    return outcomes[1]


@pytest.fixture
def states(make: Make, sql: Sql) -> Iterator[States]:
    """Install a table's functions and views, and tell how the monitor shows each running job."""
    there: list[Installed] = []

    def run(table: JobTable) -> dict[str, str]:
        for each in installed.of_table(table, connection):
            each.create(connection)
            there.append(each)
        return {row["job_id"]: row["state"] for row in sql(f"TABLE {table.name}_stale_monitor")}

    yield run
    for each in there:
        each.drop(connection)


def complaints(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    found = [*checks.check_adopted_tables(None), *checks.check_databases(None)]
    return [str(message.id) for message in found if isinstance(message, Error)]


# A unified job and its kinds, each with a table of its own that refers to the common one.


@pytest.fixture
def playbooks(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class UnifiedJob(models.Model):
            status = models.CharField(max_length=20, default="new", db_index=True)
            launch_type = models.CharField(max_length=20, default="manual")
            execution_node = models.TextField(blank=True, default="")
            started = models.DateTimeField(null=True, default=None)
            finished = models.DateTimeField(null=True, default=None)
            job_explanation = models.TextField(blank=True, default="")
            cancel_flag = models.BooleanField(default=False)

            class Meta:
                app_label = "documents"
                db_table = "unified_jobs"

        class PlaybookRun(UnifiedJob):
            playbook = models.CharField(max_length=100)

            class Meta:
                app_label = "documents"
                db_table = "playbook_runs"

        class Output(models.Model):
            job = models.ForeignKey(PlaybookRun, models.CASCADE)
            line = models.TextField()

            class Meta:
                app_label = "documents"
                db_table = "playbook_output"

    return make(UnifiedJob, PlaybookRun, Output)


UNIFIED: dict[str, Any] = {
    "columns": {
        "stage": "launch_type",
        "locked_by": "execution_node",
        "claimed_at": "started",
        "finished_at": "finished",
        "fail_reason": "job_explanation",
    },
    "words": {
        "queued": ["pending", "new", "waiting"],
        "processing": "running",
        "success": "successful",
        "failed": ["error", "failed"],
        "cancelled": "canceled",
    },
    "ttl": "1h",
    "on_expiry": "fail",
    "reclaim_only": True,
}


def test_the_parent_of_an_inherited_table_is_adopted(
    playbooks: list[Any], adopt: Adopt, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    unified, playbook, output = playbooks
    table = adopt(unified, **UNIFIED)
    assert complaints(table, monkeypatch) == []
    running = {"status": "running", "execution_node": "node-1"}
    lost = playbook.objects.create(playbook="site.yml", started=ago(hours=2), **running)
    output.objects.create(job=lost, line="ok")
    playbook.objects.create(playbook="site.yml", started=ago(minutes=50), **running)
    waiting = playbook.objects.create(playbook="site.yml", status="waiting", started=None)
    assert set(states(table).values()) == {"stale", "late"}
    assert passed(table) == {lost.pk: "failed"}
    lost.refresh_from_db()
    assert (lost.status, lost.execution_node) == ("error", "")
    assert lost.job_explanation == "RECLAIMED_TTL: Exceeded TTL (60 min)"
    assert lost.finished is not None
    waiting.refresh_from_db()
    assert waiting.status == "waiting"


def test_a_child_is_not_adopted_and_the_error_names_the_parent(
    playbooks: list[Any],
) -> None:
    _, playbook, _ = playbooks
    with pytest.raises(ConfigurationError, match=r"'unified_jobs': adopt documents\.UnifiedJob"):
        tables.register(playbook, **UNIFIED)
    assert playbook not in tables._tables


def test_a_proxy_stands_for_its_table(playbooks: list[Any], adopt: Adopt) -> None:
    unified = playbooks[0]
    with isolate_apps("project.documents"):
        meta = type("Meta", (), {"proxy": True, "app_label": "documents"})
        proxy = type("Nightly", (unified,), {"Meta": meta, "__module__": __name__})
    table = adopt(proxy, **UNIFIED)
    try:
        assert table.model is unified
        assert tables.table_of(proxy) is tables.table_of(unified) is table
    finally:
        del tables._tables[unified]


# Tasks whose lock is a foreign key to a worker.


@pytest.fixture
def tasks(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class Worker(models.Model):
            pulp_id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            name = models.TextField(unique=True)

            class Meta:
                app_label = "documents"
                db_table = "pulp_workers"

        class Task(models.Model):
            pulp_id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            state = models.TextField()
            name = models.TextField()
            started_at = models.DateTimeField(null=True)
            finished_at = models.DateTimeField(null=True)
            error = models.JSONField(null=True)
            worker = models.ForeignKey(Worker, models.SET_NULL, null=True)
            parent_task = models.ForeignKey("self", models.SET_NULL, null=True)

            class Meta:
                app_label = "documents"
                db_table = "pulp_tasks"

    return make(Worker, Task)


def test_the_lock_may_be_a_foreign_key(
    tasks: list[Any], adopt: Adopt, sql: Sql, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_model, task_model = tasks
    table = adopt(
        task_model,
        # A field or its column will do.
        columns={
            "status": "state",
            "stage": "name",
            "locked_by": "worker",
            "claimed_at": "started_at",
        },
        words={
            "queued": "waiting",
            "processing": ["running", "canceling"],
            "success": "completed",
            "cancelled": "canceled",
        },
        ttl={"sync": "12h"},
        reclaim_only=True,
    )
    assert complaints(table, monkeypatch) == []
    worker = worker_model.objects.create(name="4711@host")
    held = {"name": "sync", "worker": worker, "started_at": ago(hours=13)}
    lost = [task_model.objects.create(state=state, **held) for state in ("running", "canceling")]
    other = task_model.objects.create(state="running", **{**held, "name": "repair"})
    assert states(table) == {
        **{str(task.pk): "stale" for task in lost},
        str(other.pk): "no limit",
    }
    assert passed(table) == {task.pk: "requeued" for task in lost}
    for task in lost:
        task.refresh_from_db()
        assert (task.state, task.worker, task.started_at) == ("waiting", None, None)
    [event, _] = sql("TABLE pulp_tasks_reclaim_history")
    assert event["locked_by"] == str(worker.pk)


# Results in Celery's words.


@pytest.fixture
def results(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class JobResult(models.Model):
            id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            name = models.CharField(max_length=255, db_index=True)
            status = models.CharField(max_length=30, default="PENDING")
            worker = models.CharField(max_length=100, null=True)
            date_created = models.DateTimeField(auto_now_add=True)
            date_started = models.DateTimeField(null=True)
            date_done = models.DateTimeField(null=True)
            result = models.JSONField(null=True)
            traceback = models.TextField(null=True)

            class Meta:
                app_label = "documents"
                db_table = "job_results"

    return make(JobResult)


def test_celerys_words_are_read_and_written(
    results: list[Any], adopt: Adopt, sql: Sql, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    [result] = results
    table = adopt(
        result,
        columns={
            "stage": "name",
            "locked_by": "worker",
            "claimed_at": "date_started",
            "finished_at": "date_done",
            "fail_reason": "traceback",
        },
        words={
            "queued": "PENDING",
            "processing": ["STARTED", "RETRY"],
            "success": "SUCCESS",
            "failed": "FAILURE",
            "cancelled": "REVOKED",
        },
        ttl="30m",
        max_attempts=2,
        reclaim_only=True,
    )
    assert complaints(table, monkeypatch) == []
    lost = result.objects.create(
        name="Backup", status="STARTED", worker="celery@a", date_started=ago(hours=1)
    )
    done = result.objects.create(name="Backup", status="SUCCESS", date_started=ago(hours=1))
    assert states(table) == {str(lost.pk): "stale"}
    assert passed(table) == {lost.pk: "requeued"}
    # Attempts are counted from the events, as the table does not count them.
    result.objects.filter(pk=lost.pk).update(status="RETRY", date_started=ago(hours=1))
    [reclaimed] = sql("SELECT * FROM job_results_reap()")
    assert reclaimed == {"job_id": str(lost.pk), "outcome": "failed"}
    lost.refresh_from_db()
    assert lost.status == "FAILURE"
    assert lost.traceback == "RECLAIMED_TTL: Exceeded TTL (30 min) - Max attempts reached"
    done.refresh_from_db()
    assert done.status == "SUCCESS"


# Scans of tenants that are kept apart.


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
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    found = checks.check_tables_in_the_database(None, databases=["default"])
    return [f"{message.id} {message.msg}" for message in found]


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
    assert passed(table) == {}


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
    assert bool(passed(table)) is not is_told


def test_the_role_of_another_alias_of_the_database_is_looked_at_too(
    scan: Any,
    adopt: Adopt,
    monkeypatch: pytest.MonkeyPatch,
    as_role: Callable[[str], None],
    reaper: str,
) -> None:
    table = adopt_scans(adopt, scan)
    monkeypatch.setattr(checks, "job_tables", lambda: [table])
    assert checks.check_tables_in_the_database(None, databases=[reaper]) == []
    as_role("neither")
    with connection.cursor() as ours, connections[reaper].cursor() as theirs:
        ours.execute("SELECT current_user")
        theirs.execute(f"SET ROLE {ours.fetchone()[0]}")
        ours.execute("RESET ROLE")
    [message] = checks.check_tables_in_the_database(None, databases=[reaper])
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
