"""Installing: drift, rights, search_path, names, undoing."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from jobreaper import checks, conf, reap
from jobreaper.operations import InstallSQL
from jobreaper.schema import functions
from jobreaper.tables import table_of
from project.media.models import Job
from tests.docs import markdown
from tests.rows import Rows, Sql
from tests.tables.conftest import Adopt, Create, adopt, create

__all__ = ["adopt", "create"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]

VERBS = ("claim", "heartbeat", "finish", "release", "fail", "reap")


def there() -> set[str]:
    """What the package has installed, by name."""
    return {name for name, *_ in functions.installed(connection)}


def drifted() -> list[str]:
    messages = checks.check_installed_sql(None, databases=["default"])
    assert {message.id for message in messages} <= {"jobreaper.W010"}
    return [message.msg.split(" in the database")[0] for message in messages]


def test_what_was_migrated_is_what_this_version_renders() -> None:
    assert drifted() == []
    names = there()
    for verb in VERBS:
        assert f'"public"."jobs_{verb}"' in names
    assert '"public"."reclaim_stale_jobs"' in names


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
def test_changed_policies_are_told_until_they_are_installed(sql: Sql) -> None:
    with override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 1234}):
        assert '"public"."jobreaper_policies"' in drifted()
        call_command("migrate", verbosity=0)
        assert '"public"."jobreaper_policies"' not in drifted()
        [row] = sql("SELECT lease_sec FROM jobreaper_policies() WHERE stage = ''")
        assert row["lease_sec"] == 1234
    conf.reset()
    assert drifted() == ['"public"."jobreaper_policies"']
    call_command("reaper_sql", "--install", verbosity=0, stdout=StringIO())
    assert drifted() == []


@pytest.mark.usefixtures("as_before")
def test_a_function_made_by_another_version_is_told(sql: Sql) -> None:
    sql("COMMENT ON FUNCTION jobs_finish(bigint, text, bigint) IS 'jobreaper sha256:0'")
    assert drifted() == ['"public"."jobs_finish"']
    call_command("reaper_sql", "--install", "--table", "jobs", stdout=StringIO())
    assert drifted() == []


@pytest.mark.usefixtures("as_before")
def test_a_function_of_the_package_that_is_new_comes_with_migrate(sql: Sql) -> None:
    sql("DROP FUNCTION jobreaper_worker_here")
    assert drifted() == ['"public"."jobreaper_worker_here"']
    call_command("migrate", verbosity=0)
    assert drifted() == []


EDITS = {
    "its body": "CREATE OR REPLACE FUNCTION jobs_finish(job_id bigint, worker text, epoch bigint"
    ' DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql SET search_path = "public", "pg_temp"'
    " AS 'BEGIN RETURN true; END'",
    "its search_path": "ALTER FUNCTION jobs_finish SET search_path = public, elsewhere",
    "a setting of its own": "ALTER FUNCTION jobs_finish SET enable_seqscan = off",
    "nothing fixed": "ALTER FUNCTION jobs_finish RESET ALL",
    "whose rights it has": "ALTER FUNCTION jobs_finish SECURITY DEFINER",
}


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("edit", EDITS)
def test_a_function_that_was_changed_by_hand_is_told(sql: Sql, edit: str) -> None:
    sql(EDITS[edit])
    [message] = checks.check_installed_sql(None, databases=["default"])
    assert message.msg == (
        '"public"."jobs_finish" in the database \'default\' was changed by hand.'
    )
    call_command("reaper_sql", "--install", "--table", "jobs", stdout=StringIO())
    assert drifted() == []


@pytest.mark.usefixtures("as_before")
def test_what_is_printed_is_what_is_installed(sql: Sql) -> None:
    out = StringIO()
    call_command("reaper_sql", "--table", "jobs", stdout=out)
    made = functions.of_table(table_of(Job), connection)
    for each in reversed(made):
        each.drop(connection)
    assert '"public"."jobs_claim"' not in there()
    # Without parameters a client may send many statements at once, as psql does with a file.
    sql(out.getvalue())
    assert drifted() == []
    assert {each.name for each in made} <= there()
    [row] = sql(
        "SELECT has_function_privilege('public', 'jobs_finish(bigint,text,bigint)', 'EXECUTE')"
    )
    assert row == {"has_function_privilege": False}


@pytest.mark.usefixtures("as_before")
def test_the_migration_can_be_undone_and_done_again() -> None:
    call_command("migrate", "media", "0002", verbosity=0)
    assert not [name for name in there() if '"jobs_' in name]
    call_command("migrate", "media", verbosity=0)
    assert drifted() == []
    assert '"public"."asr_jobs_stale_monitor"' in there()


def test_the_functions_of_an_unmanaged_model_come_and_go_with_its_migration() -> None:
    call_command("migrate", "documents", "0002", verbosity=0)
    assert '"public"."reclaim_stale_jobs"' not in there()
    call_command("migrate", "documents", verbosity=0)
    assert '"public"."reclaim_stale_jobs"' in there()
    assert drifted() == []


@pytest.fixture
def operation() -> Iterator[InstallSQL]:
    """The migration that `project.media` has, undone."""
    call_command("migrate", "media", "0002", verbosity=0)
    yield InstallSQL("Job")
    call_command("migrate", "media", verbosity=0)


def applied(operation: InstallSQL, *, backwards: bool = False) -> None:
    state = MigrationLoader(connection).project_state()
    move = operation.database_backwards if backwards else operation.database_forwards
    with connection.schema_editor() as editor:
        move("media", editor, state, state)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("RENAME locked_by TO worker", "jobs RENAME worker TO locked_by"),
        ("RENAME TO old_jobs", "old_jobs RENAME TO jobs"),
    ],
)
def test_a_table_that_a_later_migration_changes_gets_its_functions_then(
    operation: InstallSQL, sql: Sql, before: str, after: str
) -> None:
    sql(f"ALTER TABLE jobs {before}")
    try:
        applied(operation)
        assert not [name for name in there() if '"jobs_' in name]
    finally:
        sql(f"ALTER TABLE {after}")
    call_command("migrate", "contenttypes", verbosity=0)
    assert '"public"."jobs_stale_monitor"' in there()
    assert drifted() == []


def test_a_model_that_is_gone_since_does_not_stop_a_new_database(
    operation: InstallSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(app_label: str, model_name: str) -> None:
        raise LookupError(f"App {app_label!r} doesn't have a {model_name!r} model.")

    with monkeypatch.context() as patch:
        patch.setattr("jobreaper.operations.install_sql.apps.get_model", gone)
        applied(operation)
        applied(operation, backwards=True)
    assert not [name for name in there() if '"jobs_' in name]


# Rights


@pytest.fixture
def stranger(dsn: str, role: str) -> Iterator[Any]:
    """A session of a role that has been granted nothing."""
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(f"SET SESSION AUTHORIZATION {role}")
        yield other


CALLS = [
    "SELECT jobs_claim('w1')",
    "SELECT jobs_heartbeat(1, 'w1')",
    "SELECT jobs_finish(1, 'w1')",
    "SELECT jobs_release(1, 'w1')",
    "SELECT jobs_fail(1, 'w1', 1, 'E1', '')",
    "SELECT jobs_reap()",
    "SELECT reclaim_stale_jobs()",
    "SELECT update_job_heartbeat(gen_random_uuid(), 'w1')",
    "SELECT jobreaper_policies()",
    "SELECT jobreaper_worker_here('w1')",
    "SELECT jobreaper_worker_left('w1')",
]


@pytest.mark.parametrize("call", CALLS)
def test_nobody_may_call_a_function_who_was_not_allowed_to(stranger: Any, call: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="denied for function"):
        stranger.execute(call)


def granted(sql: Sql, role: str, first_line: str) -> None:
    text = markdown.section(markdown.page("sql-functions"), "Rights")
    [code] = [code for _, code in markdown.blocks(text, "sql") if code.startswith(first_line)]
    sql(code.replace(" TO worker;", f" TO {role};"))


def test_the_documented_rights_are_enough_for_a_worker(
    sql: Sql, jobs: Rows, stranger: Any, role: str
) -> None:
    granted(sql, role, "-- a worker's rights")
    assert stranger.execute("SELECT jobreaper_worker_here('w1')").fetchone() == (True,)
    for verb, more in (("finish", ""), ("release", ""), ("fail", ", 'E1', 'oh'")):
        key = jobs.plant()
        [row] = stranger.execute(
            "SELECT lease_epoch FROM jobs_claim('w1', job_id => %s)", [key]
        ).fetchall()
        held = f"{key}, 'w1', {row[0]}"
        assert stranger.execute(f"SELECT jobs_heartbeat({held})").fetchone() == (True,)
        assert stranger.execute(f"SELECT jobs_{verb}({held}{more})").fetchone() == (True,)
        assert stranger.execute(f"SELECT jobs_{verb}({held}{more})").fetchone() == (False,)
    assert stranger.execute("SELECT jobreaper_worker_left('w1')").fetchone() == (True,)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute("SELECT jobs_reap()")


def test_the_documented_rights_are_enough_for_a_reaper(
    sql: Sql, jobs: Rows, stranger: Any, role: str
) -> None:
    granted(sql, role, "-- a reaper's rights")
    key = jobs.plant_expired()
    reaped = stranger.execute("SELECT * FROM jobs_reap()").fetchall()
    assert reaped == [(str(key), "requeued")]


def test_what_was_granted_outlives_a_new_installation(
    sql: Sql, stranger: Any, role: str, as_before: None
) -> None:
    granted(sql, role, "-- a worker's rights")
    call_command("reaper_sql", "--install", "--table", "jobs", stdout=StringIO())
    assert stranger.execute("SELECT * FROM jobs_claim('w1')").fetchall() == []


# Names


def test_tables_of_the_same_name_in_front_change_nothing(sql: Sql, jobs: Rows, dsn: str) -> None:
    key = jobs.plant_expired()
    sql("""
        CREATE SCHEMA hostile;
        CREATE TABLE hostile.jobs AS TABLE jobs WITH NO DATA;
        CREATE TABLE hostile.job_events AS TABLE job_events WITH NO DATA;
        CREATE FUNCTION hostile.round(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT -1.0';
    """)
    try:
        with psycopg.connect(dsn, options="-c search_path=hostile,pg_catalog,public") as other:
            other.execute("CREATE TEMPORARY TABLE jobreaper_passes (id int)")
            other.execute("CREATE TEMPORARY TABLE jobs (id int)")
            reaped = other.execute("SELECT * FROM public.jobs_reap()").fetchall()
            assert reaped == [(str(key), "requeued")]
        assert jobs.event_types(key) == ["reaper:requeued"]
        assert sql("TABLE hostile.job_events") == []
    finally:
        sql("DROP SCHEMA hostile CASCADE")


class Odd(models.Model):
    """A table whose name needs quotes in every way."""

    key = models.CharField(max_length=30, primary_key=True, db_column="the Key")
    status = models.CharField(max_length=20)
    claimed_at = models.DateTimeField(null=True, db_column="claimed @ 100%")
    last_heartbeat_at = models.DateTimeField(null=True)
    locked_by = models.TextField(null=True)
    fail_reason = models.TextField(null=True)

    class Meta:
        app_label = "office"
        managed = False
        db_table = "it's {0} %s odd %Table"

    def __str__(self) -> str:
        return self.key


def test_an_odd_name_is_quoted(sql: Sql, create: Create, adopt: Adopt) -> None:
    name = Odd._meta.db_table
    create(
        f'CREATE TABLE "{name}" ("the Key" varchar(30) PRIMARY KEY, status varchar(20),'
        ' "claimed @ 100%" timestamptz, last_heartbeat_at timestamptz, locked_by text,'
        " fail_reason text)",
        f'TABLE "{name}"',
    )
    table = adopt(Odd, ttl=60, words={"processing": "100%"}, note="% LATE %s")
    for made in [*functions.of_table(table, connection)] * 2:
        made.create(connection)
    values = "('o''KEY', '100%', now() - interval '1 h', NULL, 'w')"
    lost = f'INSERT INTO "{name}" VALUES {values}'
    sql(lost.replace("KEY", "one"))
    assert sql(f"SELECT \"{name}_heartbeat\"('o''one', 'w') AS held") == [{"held": True}]
    sql(f'UPDATE "{name}" SET last_heartbeat_at = NULL')
    assert sql(f'SELECT state FROM "{name}_stale_monitor"') == [{"state": "stale"}]
    assert sql(f'SELECT * FROM "{name}_reap"()') == [{"job_id": "o'one", "outcome": "requeued"}]
    sql(lost.replace("KEY", "two"))
    assert reap([Odd], dry_run=True).requeued_ids == {name: ["o'two"]}
    result = reap([Odd])
    assert (result.all_errors, result.requeued_ids) == ([], {name: ["o'two"]})
    assert sql(f'SELECT fail_reason FROM "{name}" GROUP BY 1') == [
        {"fail_reason": "% LATE %s: Exceeded TTL (1 min)"}
    ]
    assert len(sql(f'SELECT * FROM "{name}_reclaim_history"')) == 2
    for made in reversed(functions.of_table(table, connection)):
        made.drop(connection)


class Long(models.Model):
    """A table whose name leaves no room for a verb."""

    id = models.BigAutoField(primary_key=True)
    status = models.TextField()
    claimed_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "office"
        managed = False
        db_table = "t" * 63

    def __str__(self) -> str:
        return str(self.pk)


def test_a_long_name_is_shortened_and_stays_one_of_its_kind(create: Create, adopt: Adopt) -> None:
    create(
        f"CREATE TABLE {Long._meta.db_table} (id bigint PRIMARY KEY, status text,"
        " claimed_at timestamptz)",
        f"TABLE {Long._meta.db_table}",
    )
    made = functions.of_table(adopt(Long, ttl=60), connection)
    assert len({each.name for each in made}) == len(made) == 4
    for each in made:
        each.create(connection)
    assert {each.name for each in made} <= there()
    for each in reversed(made):
        each.drop(connection)


def test_an_error_says_which_of_them_cannot_be_made(
    create: Create, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(
        f"CREATE TABLE {Long._meta.db_table} (id bigint PRIMARY KEY, status text,"
        " claimed_at bigint)",
        f"TABLE {Long._meta.db_table}",
    )
    table = adopt(Long, ttl=60)
    monkeypatch.setattr("jobreaper.management.commands.reaper_sql.named", lambda _: [table])
    with pytest.raises(CommandError, match=r'^"public"."t+_\w+_stale_monitor": '):
        call_command("reaper_sql", "--install", stdout=StringIO())
    assert f'"public"."{Long._meta.db_table[:40]}' not in "".join(there())
