"""Somebody's table with leases that shares neither a column's name nor a word with jobreaper: in a
schema of its own, its names quoted, its status an enum, its texts empty where there is nothing.
"""

from datetime import timedelta
from typing import Any

from django.db import models

from tests.rows import TIMES, Rows, Sql

COLUMNS = {
    "status": "State",
    "stage": "kind",
    "locked_by": "worker",
    "claimed_at": "started",
    "lease_expires_at": "leased until",
    "last_heartbeat_at": "seen",
    "lease_epoch": "fence",
    "attempt_count": "tries",
    "max_attempts": "tries_allowed",
    "reap_count": "losses",
    "next_earliest_run_at": "not_before",
    "expected_duration_ms": "expected_ms",
    "deadline_at": "hard_end",
    "finished_at": "ended",
    "dispatched_at": "sent",
    "fail_code": "error_code",
    "fail_reason": "error_text",
}

WORDS = {
    "queued": "waiting",
    "processing": ["running", "finishing"],
    "success": "completed",
    "cancelled": "canceled",
}

DEFINITION = """
CREATE SCHEMA office;
CREATE TYPE office.state
    AS ENUM ('waiting', 'running', 'finishing', 'completed', 'failed', 'canceled');
CREATE TABLE office."Errands" (
    "Number" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    "State" office.state NOT NULL DEFAULT 'waiting',
    kind varchar(40) NOT NULL DEFAULT '',
    worker varchar(200) NOT NULL DEFAULT '',
    started timestamptz,
    "leased until" timestamptz,
    seen timestamptz,
    fence bigint NOT NULL DEFAULT 0,
    tries smallint NOT NULL DEFAULT 0,
    tries_allowed smallint NOT NULL DEFAULT 3,
    losses smallint NOT NULL DEFAULT 0,
    not_before timestamptz,
    expected_ms int,
    hard_end timestamptz,
    ended timestamptz,
    sent timestamptz,
    error_code varchar(200) NOT NULL DEFAULT '',
    error_text text NOT NULL DEFAULT ''
)
"""


class Errand(models.Model):
    """A row of `office."Errands"`."""

    number = models.BigAutoField(primary_key=True, db_column="Number")
    state = models.CharField(max_length=20, default="waiting", db_column="State")
    kind = models.CharField(max_length=40, default="")
    worker = models.CharField(max_length=200, default="")
    started = models.DateTimeField(null=True)
    leased_until = models.DateTimeField(null=True, db_column="leased until")
    seen = models.DateTimeField(null=True)
    fence = models.BigIntegerField(default=0)
    tries = models.SmallIntegerField(default=0)
    tries_allowed = models.SmallIntegerField(default=3)
    losses = models.SmallIntegerField(default=0)
    not_before = models.DateTimeField(null=True)
    expected_ms = models.IntegerField(null=True)
    hard_end = models.DateTimeField(null=True)
    ended = models.DateTimeField(null=True)
    sent = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=200, default="")
    error_text = models.TextField(default="")

    class Meta:
        app_label = "office"
        managed = False
        db_table = 'office"."Errands'

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Errands(Rows):
    """The table seen by a foreign client, in the protocol's own names and words."""

    words = dict(
        zip(
            ("queued", "processing", "success", "cancelled"),
            ("waiting", "running", "completed", "canceled"),
            strict=True,
        )
    )

    def __init__(self, sql: Sql) -> None:
        super().__init__(sql, "office.Errands")

    def plant(self, **columns: Any) -> Any:
        theirs = self._theirs(columns)
        values = f"({', '.join(theirs)}) VALUES ({', '.join(['%s'] * len(theirs))})"
        statement = f'INSERT INTO office."Errands" {values if theirs else "DEFAULT VALUES"}'
        [row] = self.sql(f'{statement} RETURNING "Number" AS key', *theirs.values())
        return row["key"]

    def set(self, key: object, **columns: Any) -> None:
        theirs = self._theirs(columns)
        changes = ", ".join(f"{name} = %s" for name in theirs)
        statement = f'UPDATE office."Errands" SET {changes} WHERE "Number" = %s'
        self.sql(statement, *theirs.values(), key)

    def let_time_pass(self, key: object, seconds: float) -> None:
        times = [f'"{COLUMNS[part]}"' for part in TIMES]
        changes = ", ".join(f"{name} = {name} - %s * interval '1 s'" for name in times)
        statement = f'UPDATE office."Errands" SET {changes} WHERE "Number" = %s'
        self.sql(statement, *[seconds] * len(times), key)

    def row(self, key: object) -> dict[str, Any]:
        # As JSON: the client may have prepared the statement when the table was another one.
        statement = 'SELECT to_jsonb(errand) AS row FROM office."Errands" AS errand'
        [row] = [found["row"] for found in self.sql(f'{statement} WHERE "Number" = %s', key)]
        ours = {theirs: part for part, theirs in COLUMNS.items()}
        row = {ours.get(name, name): value for name, value in row.items()}
        status = {theirs: word for word, theirs in self.words.items()}
        return {
            **row,
            "status": status.get(row["status"], row["status"]),
            "locked_by": row["locked_by"] or None,
        }

    def _theirs(self, columns: dict[str, Any]) -> dict[str, Any]:
        now = self.now()
        return {
            f'"{COLUMNS[part]}"': now + value
            if isinstance(value, timedelta)
            else self.words.get(value, value)
            if part == "status"
            else value
            for part, value in columns.items()
        }
