"""`AddLeaseColumns`: a large table becomes a job table while old code goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import NotSupportedError, ProgrammingError, connection, migrations, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.graph import MigrationGraph
from django.db.migrations.state import ModelState, ProjectState
from django.test.utils import isolate_apps

from jobreaper.base import PROTOCOL_COLUMNS, LeasedJob, LeaseIndex, lease_indexes
from jobreaper.exceptions import ConfigurationError
from jobreaper.operations import lease_columns
from jobreaper.schema import live_table
from tests.migrations.operations.conftest import ROWS, Large, Make
from tests.rows import Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

INDEXES = {"idx_large_jobs_status_lease", "idx_large_jobs_queued_due"}

# Statements as code from before sends them.
OLD_INSERT = "INSERT INTO large_jobs (status, payload) VALUES ('queued', 'old')"
OLD_UPDATE = "UPDATE large_jobs SET status = 'success' WHERE id = %s"


def columns(sql: Sql) -> set[str]:
    rows = sql(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = 'large_jobs'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return {row["attname"] for row in rows}


def indexes(sql: Sql) -> dict[str, bool]:
    """Each index beside the key's, and whether it is valid."""
    rows = sql(
        "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
        " WHERE indrelid = 'large_jobs'::regclass AND NOT indisprimary"
    )
    return {row["relname"]: row["indisvalid"] for row in rows}


def own(name: str) -> "models.Field[Any, Any]":
    [field] = [field for field in LeasedJob._meta.local_fields if field.name == name]
    return field.clone()


def declare(large: Large, *names: str) -> None:
    """As docs/adoption.md has it, for columns that the model has not declared so far."""
    for name in names:
        adding = migrations.AddField("Large", name, own(name))
        large.declare(migrations.SeparateDatabaseAndState(state_operations=[adding]))


def file_node(sql: Sql) -> int:
    [row] = sql("SELECT pg_relation_filenode('large_jobs') AS node")
    return int(row["node"])


@contextmanager
def traffic(dsn: str) -> Iterator[dict[str, Any]]:
    """Old code that inserts and updates all the while, and tells how long it had to wait."""
    told: dict[str, Any] = {"statements": 0, "longest_sec": 0.0, "errors": []}
    stop = threading.Event()

    def run(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            client.execute("SET statement_timeout = '20s'")
            while not stop.is_set():
                try:
                    for statement in (OLD_INSERT, OLD_UPDATE % (number + 1)):
                        [(sec,)] = client.execute(
                            "SELECT extract(epoch FROM clock_timestamp())::float8"
                        ).fetchall()
                        client.execute(statement.encode())
                        [(now,)] = client.execute(
                            "SELECT extract(epoch FROM clock_timestamp())::float8"
                        ).fetchall()
                        told["longest_sec"] = max(told["longest_sec"], now - sec)
                        told["statements"] += 1
                except psycopg.Error as error:
                    told["errors"].append(error)
                    return

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: told["statements"] > 20 or told["errors"])
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_no_row_is_rewritten_and_old_code_goes_on_meanwhile(
    large: Large, sql: Sql, dsn: str
) -> None:
    node = file_node(sql)
    with traffic(dsn) as told:
        large.migrate()
        done = told["statements"]
        until(lambda: told["statements"] > done + 20 or told["errors"])
    assert told["errors"] == []
    # Nobody waits longer than the ALTER TABLE does for its lock, and a little.
    assert told["longest_sec"] < 5
    assert file_node(sql) == node
    assert columns(sql) >= set(PROTOCOL_COLUMNS)
    assert indexes(sql) == dict.fromkeys(INDEXES, True)


def test_statements_of_old_code_run_on_the_new_table_and_yield_a_job(
    large: Large, sql: Sql
) -> None:
    large.migrate()
    [row] = sql(f"{OLD_INSERT} RETURNING *")
    assert (row["lease_epoch"], row["attempt_count"], row["reap_count"]) == (0, 0, 0)
    assert (row["max_attempts"], row["lease_expires_at"]) == (3, None)
    sql(OLD_UPDATE, row["id"])
    # Rows from before are jobs like any other.
    [old] = sql("SELECT * FROM large_jobs WHERE id = 100")
    assert (old["lease_epoch"], old["max_attempts"], old["payload"]) == (0, 3, None)


def test_it_waits_for_a_long_transaction_without_keeping_others_waiting(
    large: Large, sql: Sql, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_table, "LOCK_TIMEOUT", "200ms")
    monkeypatch.setattr(live_table, "WAIT_SEC", 0.1)
    failed = threading.Event()
    monkeypatch.setattr(live_table.logger, "info", lambda *_: failed.set())
    with psycopg.connect(dsn) as report:
        report.execute("SELECT count(*) FROM large_jobs").fetchone()

        def end_the_report() -> None:
            # Only after a try has failed.
            assert failed.wait(20)
            sql(OLD_INSERT)
            report.rollback()

        ending = threading.Thread(target=end_the_report)
        ending.start()
        large.migrate()
        ending.join()
    assert failed.is_set()
    assert columns(sql) >= set(PROTOCOL_COLUMNS)


def test_it_gives_up_in_the_end_and_leaves_nothing_behind(
    large: Large, sql: Sql, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_table, "LOCK_TIMEOUT", "20ms")
    monkeypatch.setattr(live_table, "WAIT_SEC", 0.01)
    monkeypatch.setattr(live_table, "TRIES", 3)
    before = columns(sql)
    with psycopg.connect(dsn) as report:
        report.execute("SELECT count(*) FROM large_jobs").fetchone()
        with pytest.raises(Exception, match="lock timeout"):
            large.migrate()
        report.rollback()
    assert columns(sql) == before
    large.migrate()
    assert columns(sql) >= set(PROTOCOL_COLUMNS)


def test_an_index_whose_build_was_broken_off_is_built_anew(large: Large, sql: Sql) -> None:
    large.migrate()
    name = "idx_large_jobs_queued_due"
    # As a build leaves it that was cancelled: there, and of no use.
    sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", name)
    assert indexes(sql)[name] is False
    large.migrate()
    assert indexes(sql) == dict.fromkeys(INDEXES, True)


def test_what_is_there_is_left_alone(large: Large, sql: Sql) -> None:
    sql("ALTER TABLE large_jobs ADD COLUMN lease_epoch bigint NOT NULL DEFAULT 0")
    sql("UPDATE large_jobs SET lease_epoch = 7 WHERE id = 1")
    declare(large, "lease_epoch")
    large.migrate()
    large.migrate()
    large.undo()
    assert sql("SELECT lease_epoch FROM large_jobs WHERE id = 1") == [{"lease_epoch": 7}]


def test_it_can_be_undone(large: Large, sql: Sql) -> None:
    before = columns(sql)
    large.migrate()
    large.undo()
    assert columns(sql) == before
    assert indexes(sql) == {}
    assert sql("SELECT count(*) FROM large_jobs") == [{"count": ROWS}]
    large.undo()


def finished_jobs(make: Make, sql: Sql) -> dict[str, Any]:
    """A table `their_jobs` that has a status and more, and a row that is through."""
    make(
        "CREATE TABLE their_jobs (id int PRIMARY KEY, payload text, status text NOT NULL,"
        " finished_at timestamptz, fail_reason text)",
        "INSERT INTO their_jobs VALUES (1, 'p', 'success', now(), 'at the second try')",
        drop="TABLE their_jobs",
    )
    return the_job(sql)


def the_job(sql: Sql) -> dict[str, Any]:
    [row] = sql("SELECT to_jsonb(their_jobs) AS job FROM their_jobs")
    return dict(row["job"])


@pytest.mark.parametrize("managed", [False, True])
def test_columns_that_the_model_does_not_declare_are_never_dropped(
    make: Make, sql: Sql, managed: bool
) -> None:
    before = finished_jobs(make, sql)
    theirs = Large("their_jobs", {"payload": models.TextField(null=True)}, managed=managed)
    with pytest.raises(
        ConfigurationError, match=r"their_jobs: .*: fail_reason, finished_at, status: if"
    ):
        theirs.migrate()
    assert the_job(sql) == before
    theirs.undo()
    assert the_job(sql) == before
    declare(theirs, "status", "finished_at", "fail_reason")
    for _ in range(2):
        theirs.migrate()
        row = the_job(sql)
        assert row.keys() >= set(PROTOCOL_COLUMNS)
        assert row.items() >= before.items()
        theirs.undo()
        assert the_job(sql) == before


def test_a_column_that_another_field_has_is_told_and_never_dropped(make: Make, sql: Sql) -> None:
    before = finished_jobs(make, sql)
    had = {name: own(name) for name in ("finished_at", "fail_reason")}
    theirs = Large("their_jobs", {"state": models.TextField(db_column="status"), **had})
    with pytest.raises(ConfigurationError, match="field 'state' has the column 'status': rename"):
        theirs.migrate()
    theirs.undo()
    assert the_job(sql) == before
    theirs.declare(migrations.RenameField("Large", "state", "status"))
    theirs.migrate()
    theirs.undo()
    assert the_job(sql) == before


def test_a_column_that_was_put_in_the_place_of_ours_is_not_dropped(large: Large, sql: Sql) -> None:
    large.migrate()
    sql("ALTER TABLE large_jobs DROP COLUMN fail_reason, ADD COLUMN fail_reason text")
    large.undo()
    assert columns(sql) == {"id", "status", "payload", "fail_reason"}
    with pytest.raises(ConfigurationError, match="does not declare: fail_reason:"):
        large.migrate()


def test_a_column_that_somebody_adds_meanwhile_is_not_taken_for_ours(
    large: Large, sql: Sql, dsn: str
) -> None:
    def be_first(execute: Any, text: str, *args: object) -> object:
        if text.startswith("ALTER TABLE"):
            with psycopg.connect(dsn, autocommit=True) as other:
                other.execute("SET lock_timeout = '10s'")
                other.execute("ALTER TABLE large_jobs ADD COLUMN fail_reason text DEFAULT 'mine'")
        return execute(text, *args)

    with (
        connection.execute_wrapper(be_first),
        pytest.raises(ProgrammingError, match=r"fail_reason.*already exists"),
    ):
        large.migrate()
    large.undo()
    assert columns(sql) == {"id", "status", "payload", "fail_reason"}


def test_what_the_model_had_is_there_after_it_was_undone(large: Large, sql: Sql) -> None:
    declare(large, *lease_columns.COLUMNS - {"status"})
    due = next(index for index in lease_indexes("large_jobs") if "due" in index.name)
    large.declare(migrations.AddIndex("Large", due))
    had = ", ".join(
        f"ADD COLUMN {name} int" for name in lease_columns.COLUMNS - {"status", "stage"}
    )
    sql(f"ALTER TABLE large_jobs {had}, ADD COLUMN stage text")
    sql(f"CREATE INDEX {due.name} ON large_jobs (id)")
    before = columns(sql)
    large.migrate()
    assert set(indexes(sql)) == INDEXES
    large.undo()
    assert set(indexes(sql)) == {due.name}
    assert columns(sql) == before


def test_it_refuses_a_migration_in_one_transaction(large: Large, sql: Sql) -> None:
    before = columns(sql)
    with (
        pytest.raises(NotSupportedError, match="atomic = False"),
        connection.schema_editor(atomic=True) as editor,
    ):
        large.operation.database_forwards("large", editor, large.before, large.after)
    assert columns(sql) == before


@pytest.mark.parametrize("has_priority", [False, True])
def test_makemigrations_finds_nothing_more_to_do(has_priority: bool) -> None:
    large = Large()
    extra: dict[str, Any] = {}
    if has_priority:
        extra["priority"] = models.SmallIntegerField(default=0)
        state = large.before
        state.add_field("large", "large", "priority", extra["priority"].clone(), True)
        large.after = state.clone()
        large.operation.state_forwards("large", large.after)
    with isolate_apps():
        meta = type("Meta", (), {"app_label": "large", "db_table": "large_jobs"})
        model = type(
            "Large",
            (LeasedJob,),
            {
                "id": models.BigAutoField(primary_key=True),
                "status": models.TextField(default="queued", db_default="queued"),
                "payload": models.TextField(null=True),
                **extra,
                "Meta": meta,
                "__module__": __name__,
            },
        )
    to = ProjectState()
    to.add_model(ModelState.from_model(model))
    to.models["large", "large"].managers = []
    found = MigrationAutodetector(large.after, to).changes(MigrationGraph())
    operations_found = [str(o) for ms in found.values() for m in ms for o in m.operations]
    assert operations_found == []


def test_what_leased_job_gains_in_a_later_version_is_left_to_makemigrations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with isolate_apps():
        later = type(
            "LaterJob",
            (LeasedJob,),
            {
                "colour": models.TextField(null=True),
                "Meta": type("Meta", (), {"abstract": True, "app_label": "large"}),
                "__module__": __name__,
            },
        )
    by_colour = LeaseIndex.named("large_jobs", "by_colour", fields=["colour"])
    gained = [*lease_indexes("large_jobs"), by_colour]
    monkeypatch.setattr(lease_columns, "LeasedJob", later)
    monkeypatch.setattr(lease_columns, "lease_indexes", lambda *args, **kwargs: gained)
    state = Large().after.models["large", "large"]
    assert set(state.fields) == {*PROTOCOL_COLUMNS, "id", "payload"}
    assert {index.name for index in state.options["indexes"]} == INDEXES
