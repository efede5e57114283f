"""Tables from before jobreaper gain leases: their rows, and the programs that write them, go on."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from jobreaper import claim, claim_next, reap
from jobreaper.states import LeaseState, Status
from project.media.models import AsrJob, Job
from tests.migrations.conftest import Migrate, Sql

BEFORE = ("media", "0001_before_jobreaper")
LEASES = ("media", "0002_leases")

TABLES: dict[str, Any] = {"jobs": Job, "asr_jobs": AsrJob}

OLD_INSERTS = [
    "INSERT INTO {table} DEFAULT VALUES",
    "INSERT INTO {table} (stage, payload) VALUES ('clip', '{{\"n\": 1}}')",
    "INSERT INTO {table} (status, stage, last_heartbeat_at, attempt_count, payload, created_at,"
    " updated_at) VALUES ('queued', 'asr', NULL, 0, '{{}}', now(), now())",
]
OLD_ROWS = (
    "INSERT INTO {table} (status, stage, last_heartbeat_at, attempt_count, payload)"
    " SELECT status, 'clip', now() - interval '30 days', n, jsonb_build_object('n', n)"
    " FROM unnest('{{queued,processing,success,failed,cancelled}}'::text[])"
    " WITH ORDINALITY AS old (status, n)"
)


def contents(sql: Sql) -> list[list[dict[str, Any]]]:
    return [sql(f"SELECT * FROM {table} ORDER BY id") for table in TABLES]


def files(sql: Sql) -> list[list[dict[str, Any]]]:
    """What changes when a table is rewritten."""
    return [sql("SELECT pg_relation_filenode(%s::regclass) AS file", table) for table in TABLES]


@pytest.fixture
def rows_from_before(migrate: Migrate, sql: Sql) -> None:
    """The tables as they were, with a row in each status."""
    migrate(*BEFORE)
    for table in TABLES:
        sql(OLD_ROWS.format(table=table))


@pytest.mark.usefixtures("rows_from_before")
def test_rows_from_before_survive_and_none_is_rewritten(migrate: Migrate, sql: Sql) -> None:
    before, stored = contents(sql), files(sql)
    migrate(*LEASES)
    assert files(sql) == stored
    for rows, rows_before in zip(contents(sql), before, strict=True):
        kept = [{name: row[name] for name in rows_before[0]} for row in rows]
        assert kept == rows_before
        added = [(name, row[name]) for row in rows for name in set(row) - set(rows_before[0])]
        assert {name: value for name, value in added if value is not None} == {
            "lease_epoch": 0,
            "max_attempts": 3,
            "reap_count": 0,
        }


def test_an_insert_from_before_yields_a_claimable_job(migrate: Migrate, sql: Sql) -> None:
    migrate()
    for table, model in TABLES.items():
        for insert in OLD_INSERTS:
            [row] = sql(f"{insert.format(table=table)} RETURNING id, max_attempts")
            assert row["max_attempts"] == 3
            lease = claim(model, row["id"])
            assert lease is not None
            lease.finish()
        assert sql(f"SELECT DISTINCT status FROM {table}") == [{"status": Status.SUCCESS}]


@pytest.mark.usefixtures("rows_from_before")
def test_a_queued_row_from_before_is_claimed_and_no_other(migrate: Migrate) -> None:
    migrate()
    for model in TABLES.values():
        [lease] = claim_next(model, 10)
        assert lease.job.payload == {"n": 1}
        # The attempts that the old workers counted are kept.
        assert lease.job.attempt_count == 2


@pytest.mark.usefixtures("rows_from_before")
def test_a_running_row_from_before_is_never_reaped_by_default_but_shown(
    migrate: Migrate, sql: Sql
) -> None:
    migrate()
    before = contents(sql)
    result = reap()
    assert (result.requeued, result.failed, result.all_errors) == (0, 0, [])
    assert contents(sql) == before
    for model in TABLES.values():
        [stuck] = model.objects.stuck().with_lease_state()
        assert (stuck.status, stuck.lease_state) == (Status.PROCESSING, LeaseState.NONE)


@pytest.mark.usefixtures("rows_from_before")
def test_an_old_worker_finishes_its_job_after_the_migration_as_before(
    migrate: Migrate, sql: Sql
) -> None:
    migrate()
    running = "WHERE status = 'processing'"
    sql(f"UPDATE jobs SET last_heartbeat_at = now() {running}")
    [row] = sql(f"UPDATE jobs SET status = 'success', updated_at = now() {running} RETURNING id")
    assert reap().requeued == 0
    assert sql("SELECT status FROM jobs WHERE id = %s", row["id"]) == [{"status": Status.SUCCESS}]


@pytest.mark.usefixtures("rows_from_before")
def test_the_way_back_and_forth_keeps_the_rows(migrate: Migrate, sql: Sql) -> None:
    before = contents(sql)
    migrate()
    migrate(*BEFORE)
    assert contents(sql) == before
    migrate()
    for model in TABLES.values():
        [lease] = claim_next(model)
        lease.finish()


@pytest.mark.slow
def test_the_package_can_be_taken_out_and_put_back_and_its_events_outlive_it(
    migrate: Migrate, sql: Sql
) -> None:
    migrate()
    sql("INSERT INTO jobs DEFAULT VALUES")
    claim_next(Job)[0].finish()
    events = sql("SELECT * FROM job_events")
    migrate(*BEFORE)
    migrate("documents", "zero")
    migrate("jobreaper", "zero")
    assert sql("SELECT * FROM job_events") == events
    migrate()
    assert sql("SELECT * FROM job_events") == events


def test_each_job_table_has_its_partial_indexes_under_the_contracts_names(
    migrate: Migrate, sql: Sql
) -> None:
    migrate()
    found = {
        row["name"]: row["definition"]
        for row in sql(
            "SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition"
            " FROM pg_index WHERE indisvalid"
        )
    }
    for name in ("jobs", "asr_jobs", "jobreaper_jobs"):
        assert found[f"idx_{name}_status_lease"].endswith(
            "(status, lease_expires_at) WHERE (status = 'processing'::text)"
        )
        assert found[f"idx_{name}_queued_due"].endswith(
            "(next_earliest_run_at, id) WHERE (status = 'queued'::text)"
        )


def test_every_column_may_be_left_out_of_an_insert(migrate: Migrate, sql: Sql) -> None:
    migrate()
    needed = sql(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_name IN ('jobs', 'asr_jobs', 'jobreaper_jobs')"
        " AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"
    )
    # The ready-made table has no writers from before jobreaper.
    assert {(row["table_name"], row["column_name"]) for row in needed} == {
        ("jobreaper_jobs", "id"),
        ("jobreaper_jobs", "type"),
    }


def test_the_indexes_of_a_table_in_use_are_built_while_its_workers_go_on(
    capsys: pytest.CaptureFixture[str], migrate: Migrate
) -> None:
    migrate(*BEFORE)
    call_command("sqlmigrate", *LEASES)
    printed = capsys.readouterr().out.splitlines()
    statements = [line for line in printed if "CREATE INDEX" in line]
    assert len(statements) == 4
    assert all(line.startswith("CREATE INDEX CONCURRENTLY") for line in statements)


def test_a_migration_that_was_interrupted_can_be_run_again(migrate: Migrate, sql: Sql) -> None:
    migrate(*BEFORE)
    builds = []

    def interrupt(execute: Any, text: str, *args: Any) -> Any:
        if text.startswith("CREATE INDEX"):
            builds.append(text)
            if len(builds) == 3:
                raise KeyboardInterrupt
        return execute(text, *args)

    with connection.execute_wrapper(interrupt), pytest.raises(KeyboardInterrupt):
        migrate(*LEASES)
    # As a build leaves it that was cancelled: there, and of no use.
    sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_jobs_queued_due'::regclass")
    migrate()
    assert sql("SELECT FROM pg_index WHERE NOT indisvalid") == []
    for model in TABLES.values():
        model.objects.create()
        claim_next(model)[0].finish()


def test_the_models_and_the_migrations_agree(migrate: Migrate) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
