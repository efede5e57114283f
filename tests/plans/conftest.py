"""A job table of many rows, loaded once for a module's tests, and the plans of statements on it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

from jobreaper import conf
from jobreaper.db import ANY_SESSION

FINISHED = 100_000

FILLING = """
INSERT INTO jobs (status, stage, attempt_count, lease_epoch, finished_at)
SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'success' END, 'clip', 1, 1, now()
  FROM generate_series(1, {finished}) AS n;

INSERT INTO jobs (status, stage, attempt_count, lease_epoch, locked_by, claimed_at,
                  last_heartbeat_at, lease_expires_at)
SELECT 'processing', 'clip', 1, 1, 'worker ' || n % 10, now(), now(),
       now() + n * interval '1 minute'
  FROM generate_series(1, 200) AS n;

INSERT INTO jobs (status, stage, attempt_count, lease_epoch, locked_by, claimed_at,
                  last_heartbeat_at, lease_expires_at)
SELECT 'processing', 'clip', 1, 1, 'dead', now(), now(), now() - n * interval '1 second'
  FROM generate_series(1, {expired}) AS n;

INSERT INTO jobs (stage, next_earliest_run_at)
SELECT CASE WHEN n % 2 = 0 THEN 'clip' ELSE 'burnin' END,
       CASE WHEN n % 4 = 0 THEN now() - n * interval '1 second' END
  FROM generate_series(1, 200) AS n;

INSERT INTO jobs (stage, next_earliest_run_at)
SELECT 'clip', now() + n * interval '1 minute' FROM generate_series(1, {scheduled}) AS n;
"""


@dataclass(frozen=True)
class Load:
    """How many rows of each kind there are, beside `FINISHED` finished ones and a few others."""

    expired: int = 0
    scheduled: int = 0

    def __str__(self) -> str:
        return f"{self.expired} expired, {self.scheduled} scheduled"


QUIET = Load()
BACKLOG = Load(expired=20_000, scheduled=50_000)


@pytest.fixture(scope="module", params=[QUIET, BACKLOG], ids=str)
def load(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Load]:
    """The rows of a load, as the planner knows them."""
    load: Load = request.param
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        filling = FILLING.format(finished=FINISHED, expired=load.expired, scheduled=load.scheduled)
        cursor.execute(filling)
        cursor.execute("VACUUM (ANALYZE) jobs")
    yield load
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs RESTART IDENTITY")
        cursor.execute("VACUUM (ANALYZE) jobs")


class Plan:
    """What a statement did to a table."""

    def __init__(self, root: dict[str, Any], table: str) -> None:
        self.table = table
        self.indexes: set[str] = set()
        self.scans: set[str] = set()
        self.rows_read = 0
        self.rows_sorted = 0
        self.rows_changed = 0
        self._look_at(root)

    def __repr__(self) -> str:
        return f"<Plan {vars(self)}>"

    def _look_at(self, node: dict[str, Any]) -> None:
        if not node["Actual Loops"]:
            return
        rows = node["Actual Rows"] * node["Actual Loops"]
        dropped = sum(value for key, value in node.items() if key.startswith("Rows Removed by"))
        own = tuple(f"{kind}{self.table}_" for kind in ("idx_", "uniq_", ""))
        if node.get("Index Name", "").startswith(own):
            self.indexes.add(node["Index Name"])
        if node["Node Type"] == "ModifyTable":
            self.rows_changed += rows
        elif node.get("Relation Name") == self.table:
            self.scans.add(node["Node Type"])
            self.rows_read += int(rows + dropped * node["Actual Loops"])
        elif node["Node Type"] == "Sort":
            self.rows_sorted += int(rows)
        for child in node.get("Plans", ()):
            self._look_at(child)


@pytest.fixture
def explain(db: None) -> Callable[..., Plan]:
    """Run a statement, undo it, and return its plan with the rows it really read."""

    def run(statement: str, params: Any, table: str = "jobs") -> Plan:
        of_session = {
            "session": ANY_SESSION,
            "session_settings": list(conf.settings().session_settings),
        }
        if isinstance(params, dict):
            params = {**of_session, **params}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", params)
            [(plan,)] = cursor.fetchall()
            transaction.set_rollback(True)
        return Plan((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"], table)

    return run
