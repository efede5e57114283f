"""Functions and views of an earlier version give way to new ones, and what others made stays."""

from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, transaction
from django.test import override_settings

from jobreaper import checks
from jobreaper.schema import functions
from jobreaper.schema.objects import Installed
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.schema.test_installed import Long
from tests.tables.conftest import Adopt, Create, adopt, create
from tests.waiting import until

__all__ = ["adopt", "create"]

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.usefixtures("as_before")]


def made(name: str) -> Installed:
    [found] = [
        each
        for each in functions.of_table(table_of(Job), connection)
        if each.name == f'"public"."{name}"'
    ]
    return found


def install() -> None:
    call_command("reaper_sql", "--install", "--table", "jobs", stdout=StringIO())


def w010() -> list[tuple[str, str]]:
    messages = checks.check_installed_sql(None, databases=["default"])
    return [(message.msg, str(message.hint)) for message in messages]


def as_of_another_version(sql: Sql, name: str, statement: str) -> None:
    """Put what an earlier version may have made in the place of a function or view."""
    made(name).drop(connection)
    sql(statement)
    kind = made(name).kind
    sql(f"COMMENT ON {kind} {name} IS 'jobreaper sha256:0'")


OTHER_VIEW = "CREATE VIEW jobs_stale_monitor AS SELECT 1 AS job_id, 2 AS something_else"
OTHER_FUNCTIONS = {
    "another result": "CREATE FUNCTION jobs_finish(job_id bigint, worker text, epoch bigint)"
    " RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "other names of the arguments": "CREATE FUNCTION jobs_finish(id bigint, worker text,"
    " epoch bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "another key": "CREATE FUNCTION jobs_finish(job_id int, worker text, epoch bigint)"
    " RETURNS boolean LANGUAGE sql AS 'SELECT true'",
}


def test_a_view_with_other_columns_is_made_anew_and_what_was_granted_stays(
    sql: Sql, jobs: Rows, role: str
) -> None:
    as_of_another_version(sql, "jobs_stale_monitor", OTHER_VIEW)
    sql(f"GRANT SELECT ON jobs_stale_monitor TO {role} WITH GRANT OPTION")
    install()
    jobs.plant_running()
    sql(f"SET ROLE {role}")
    try:
        [shown] = sql("TABLE jobs_stale_monitor")
    finally:
        sql("RESET ROLE")
    assert shown["state"] == "healthy"
    assert w010() == []


@pytest.mark.parametrize("what", OTHER_FUNCTIONS)
def test_a_function_of_another_shape_is_made_anew_and_what_was_granted_stays(
    sql: Sql, role: str, what: str
) -> None:
    as_of_another_version(sql, "jobs_finish", OTHER_FUNCTIONS[what])
    sql(f"GRANT EXECUTE ON FUNCTION jobs_finish TO {role}")
    sql("REVOKE ALL ON FUNCTION jobs_finish FROM PUBLIC")
    install()
    [row] = sql(
        "SELECT count(*), bool_and(has_function_privilege(%s, oid, 'EXECUTE')) AS granted,"
        "       bool_or(has_function_privilege('public', oid, 'EXECUTE')) AS to_all"
        "  FROM pg_proc WHERE proname = 'jobs_finish'",
        role.strip('"'),
    )
    assert row == {"count": 1, "granted": True, "to_all": False}
    assert sql("SELECT jobs_finish(1, 'w', 1) AS held") == [{"held": False}]
    assert w010() == []


def test_what_depends_on_a_view_of_another_shape_is_never_dropped(sql: Sql) -> None:
    as_of_another_version(sql, "jobs_stale_monitor", OTHER_VIEW)
    sql("CREATE VIEW our_board AS SELECT something_else FROM jobs_stale_monitor")
    try:
        with pytest.raises(CommandError, match=r"jobs_stale_monitor.*other objects depend on it"):
            install()
        with pytest.raises(ProgrammingError, match="view our_board depends on view"):
            made("jobs_stale_monitor").create(connection)
        assert sql("TABLE our_board") == [{"something_else": 2}]
    finally:
        sql("DROP VIEW our_board")
    install()
    assert w010() == []


def test_what_depends_on_a_view_of_the_same_shape_goes_on(sql: Sql, jobs: Rows) -> None:
    sql("CREATE VIEW our_board AS SELECT state FROM jobs_stale_monitor")
    try:
        sql("COMMENT ON VIEW jobs_stale_monitor IS 'jobreaper sha256:0'")
        install()
        jobs.plant_running()
        assert sql("TABLE our_board") == [{"state": "healthy"}]
    finally:
        sql("DROP VIEW our_board")


@pytest.mark.parametrize("kind", ["FUNCTION", "VIEW"])
def test_what_somebody_else_has_made_under_the_same_name_is_not_replaced(
    sql: Sql, kind: str
) -> None:
    name = {"FUNCTION": "jobs_finish", "VIEW": "jobs_stale_monitor"}[kind]
    signature = made(name).signature
    sql(f"COMMENT ON {kind} {signature} IS 'ours'")
    with pytest.raises(CommandError, match=f"{name}.* was not made by jobreaper: rename it"):
        install()
    sql(f"COMMENT ON {kind} {signature} IS 'jobreaper sha256:0'")
    install()


def test_somebody_elses_function_of_the_same_name_with_other_arguments_is_left_alone(
    sql: Sql,
) -> None:
    sql("CREATE FUNCTION jobs_finish(text) RETURNS text LANGUAGE sql AS $$SELECT 'ours'$$")
    try:
        install()
        made("jobs_finish").drop(connection)
        install()
        assert sql("SELECT jobs_finish('x')") == [{"jobs_finish": "ours"}]
    finally:
        sql("DROP FUNCTION jobs_finish(text)")


def test_what_is_missing_is_told(sql: Sql) -> None:
    made("jobs_release").drop(connection)
    [(message, hint)] = w010()
    assert message == '"public"."jobs_release" in the database \'default\' is missing.'
    assert "reaper_sql --install --database default" in hint
    install()
    assert w010() == []


def test_a_table_without_any_is_not_asked_for_them(sql: Sql) -> None:
    for each in reversed(functions.of_table(table_of(Job), connection)):
        each.drop(connection)
    assert w010() == []


def test_what_belongs_to_no_table_is_told_with_the_statements_that_remove_it(
    sql: Sql, create: Create, adopt: Adopt
) -> None:
    name = Long._meta.db_table
    create(f"CREATE TABLE {name} (id bigint, status text, claimed_at timestamptz)", f"TABLE {name}")
    made_of = functions.of_table(adopt(Long, ttl=60), connection)
    for each in made_of:
        each.create(connection)
    # The model's app is not among the installed ones.
    told = w010()
    assert {message for message, _ in told} == {
        f"{each.name} in the database 'default' belongs to no job table." for each in made_of
    }
    for _, hint in told:
        statement = hint.removeprefix("Unless another project uses it: ").split(";")[0]
        assert statement.startswith("DROP ")
        sql(statement)
    assert w010() == []


def test_two_who_install_at_once_do_not_fail(sql: Sql) -> None:
    wait = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND query LIKE '%pg_advisory_xact_lock%'"
    )
    with ThreadPoolExecutor() as pool:
        with transaction.atomic():
            made("jobs_finish").create(connection)
            other = pool.submit(create_in_another_session, made("jobs_finish"))
            until(lambda: sql(wait) or other.done())
        other.result()
    assert w010() == []


def create_in_another_session(each: Installed) -> None:
    try:
        each.create(connection)
    finally:
        connection.close()


class Archive:
    """A router that has the jobs in another database."""

    def db_for_write(self, model: object, **hints: object) -> str | None:
        return "archive" if model is Job else None


def test_a_table_of_another_database_is_not_passed_over() -> None:
    with (
        override_settings(DATABASE_ROUTERS=[Archive()]),
        pytest.raises(CommandError, match=r"not in the database 'default': jobs in 'archive'"),
    ):
        install()


def test_another_alias_of_the_same_database_is_not_told_to_drop_them(reaper: str) -> None:
    assert checks.check_installed_sql(None, databases=[reaper]) == []
