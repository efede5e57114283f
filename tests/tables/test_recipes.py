"""The recipes of `docs/adoption.md`, as they stand there."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from django.db import models

import jobreaper
from tests.docs import markdown
from tests.rows import Rows, Sql, ago
from tests.tables.conftest import Adopt, Create
from tests.tables.shapes import AWX, PULP

pytestmark = pytest.mark.usefixtures("transactional_db")

RECIPES = markdown.section(markdown.page("adoption"), "Recipes")


def recipe(heading: str) -> str:
    [(_, code)] = markdown.blocks(markdown.section(RECIPES, heading), "sql")
    return code


def table_of(
    name: str, key: models.Field[Any, Any], **fields: models.Field[Any, Any]
) -> type[models.Model]:
    meta = type("Meta", (), {"app_label": "chores", "managed": False, "db_table": name})
    return type(name, (models.Model,), {"id": key, **fields, "Meta": meta, "__module__": __name__})


def test_a_column_that_a_status_implies_follows_it(create: Create, adopt: Adopt, sql: Sql) -> None:
    create(AWX.definition, *AWX.drop)
    create(
        recipe("Columns that a status implies"),
        "FUNCTION main_unifiedjob_implied()",
    )
    table = adopt(
        table_of(
            "main_unifiedjob",
            models.AutoField(primary_key=True),
            status=models.TextField(),
            started=models.DateTimeField(null=True),
        ),
        columns={"claimed_at": "started"},
        words={"queued": "pending", "processing": "running", "failed": "error"},
        ttl="15m",
        max_attempts=1,
    )
    [lost] = sql(AWX.lost)
    assert jobreaper.reap([table.model]).failed_ids == {"main_unifiedjob": [lost["id"]]}
    assert sql("SELECT status, failed FROM main_unifiedjob") == [
        {"status": "error", "failed": True}
    ]
    sql("UPDATE main_unifiedjob SET status = 'pending'")
    assert sql("SELECT failed FROM main_unifiedjob") == [{"failed": False}]


def test_the_heartbeat_of_a_worker_is_that_of_its_jobs(
    create: Create, adopt: Adopt, sql: Sql
) -> None:
    create(
        "CREATE TABLE core_appstatus (pulp_id uuid PRIMARY KEY, last_heartbeat timestamptz)",
        "TABLE core_appstatus",
    )
    create(PULP.definition, *PULP.drop)
    create(recipe("Heartbeats in a table of workers"), "FUNCTION core_task_heartbeat()")
    table = adopt(
        table_of(
            "core_task",
            models.UUIDField(primary_key=True, db_column="pulp_id"),
            state=models.TextField(),
            started_at=models.DateTimeField(null=True),
            heartbeat_at=models.DateTimeField(null=True),
        ),
        columns={
            "status": "state",
            "claimed_at": "started_at",
            "last_heartbeat_at": "heartbeat_at",
        },
        words={"queued": "waiting", "processing": ["running", "canceling"]},
        ttl="5m",
    )
    alive, gone = uuid.uuid4(), uuid.uuid4()
    tasks = {worker: sql(PULP.lost)[0]["id"] for worker in (alive, gone)}
    for worker, task in tasks.items():
        sql("INSERT INTO core_appstatus VALUES (%s, now() - interval '1 hour')", worker)
        sql("UPDATE core_task SET app_lock_id = %s WHERE pulp_id = %s", worker, task)
    ended = sql(PULP.lost)[0]["id"]
    sql(
        "UPDATE core_task SET state = 'completed', app_lock_id = %s WHERE pulp_id = %s",
        alive,
        ended,
    )
    sql("UPDATE core_appstatus SET last_heartbeat = now() WHERE pulp_id = %s", alive)
    assert jobreaper.reap([table.model]).requeued_ids == {"core_task": [tasks[gone]]}
    beaten = sql("SELECT pulp_id FROM core_task WHERE heartbeat_at IS NOT NULL")
    assert beaten == [{"pulp_id": tasks[alive]}]


def test_a_heartbeat_waits_for_no_task_that_somebody_has_locked(
    create: Create, sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    create(
        "CREATE TABLE core_appstatus (pulp_id uuid PRIMARY KEY, last_heartbeat timestamptz)",
        "TABLE core_appstatus",
    )
    create(PULP.definition, *PULP.drop)
    create(recipe("Heartbeats in a table of workers"), "FUNCTION core_task_heartbeat()")
    worker = uuid.uuid4()
    sql("INSERT INTO core_appstatus VALUES (%s)", worker)
    for _ in range(2):
        task = sql(PULP.lost)[0]["id"]
        sql("UPDATE core_task SET app_lock_id = %s WHERE pulp_id = %s", worker, task)
    second_connection.execute("SELECT FROM core_task WHERE pulp_id = %s FOR UPDATE", [task])
    sql("SET lock_timeout = '1s'")
    sql("UPDATE core_appstatus SET last_heartbeat = now()")
    second_connection.rollback()
    beaten = sql("SELECT pulp_id FROM core_task WHERE heartbeat_at IS NOT NULL")
    assert len(beaten) == 1
    assert beaten[0]["pulp_id"] != task


def test_a_job_is_given_back_by_hand_where_it_runs_and_nowhere_else(executor_jobs: Rows) -> None:
    columns = {"locked_by": "executor-1", "locked_at": ago(9), "heartbeat_at": ago(1)}
    running, done = (
        executor_jobs.plant(type="a", status=status, **columns) for status in ("running", "success")
    )
    before = executor_jobs.row(done)
    for key in (running, done):
        executor_jobs.sql(recipe("Requeue or fail a job by hand").replace("…", str(key)))
    row = executor_jobs.row(running)
    assert row["status"] == "queued"
    assert {row[name] for name in columns} == {None}
    assert executor_jobs.row(done) == before
