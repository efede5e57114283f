"""Job tables as a foreign client sees them: plain SQL, no model, its own connection."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

Sql = Callable[..., list[dict[str, Any]]]

TIMES = (
    "claimed_at",
    "lease_expires_at",
    "last_heartbeat_at",
    "next_earliest_run_at",
    "deadline_at",
    "finished_at",
    "dispatched_at",
)


def ago(seconds: float) -> timedelta:
    """A column's value, counted from the moment of the statement that writes it."""
    return timedelta(seconds=-seconds)


def ahead(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class Rows:
    """One job table. A `timedelta` given for a column means that long from now."""

    def __init__(self, sql: Sql, table: str = "jobs") -> None:
        self.sql = sql
        self.table = table

    def plant(self, **columns: Any) -> Any:
        """Insert a row and return its key."""
        if self.table == "jobreaper_jobs":
            columns = {"id": uuid.uuid4(), "type": "anything", **columns}
        marks = [_mark(value) for value in columns.values()]
        values = (
            f"({', '.join(columns)}) VALUES ({', '.join(marks)})" if columns else "DEFAULT VALUES"
        )
        statement = f"INSERT INTO {self.table} {values} RETURNING id"
        return self.sql(statement, *columns.values())[0]["id"]

    def plant_running(self, **columns: Any) -> Any:
        """Insert a job that a worker claimed a minute ago and beat a moment ago."""
        return self.plant(
            **{
                "status": "processing",
                "locked_by": "elsewhere:7:0badf00d",
                "claimed_at": ago(60),
                "last_heartbeat_at": ago(1),
                "lease_expires_at": ahead(299),
                "attempt_count": 1,
                "lease_epoch": 1,
                **columns,
            }
        )

    def plant_expired(self, **columns: Any) -> Any:
        """Insert a job whose worker has not been heard of for long enough."""
        return self.plant_running(
            **{"last_heartbeat_at": ago(341), "lease_expires_at": ago(41), **columns}
        )

    def set(self, key: object, **columns: Any) -> None:
        """Update a row."""
        changes = ", ".join(f"{name} = {_mark(value)}" for name, value in columns.items())
        self.sql(f"UPDATE {self.table} SET {changes} WHERE id = %s", *columns.values(), key)

    def let_time_pass(self, key: object, seconds: float) -> None:
        """Move every time of a row back, as if the clock had gone on meanwhile."""
        changes = ", ".join(f"{name} = {name} - %s" for name in TIMES)
        statement = f"UPDATE {self.table} SET {changes} WHERE id = %s"
        self.sql(statement, *[timedelta(seconds=seconds)] * len(TIMES), key)

    def row(self, key: object) -> dict[str, Any]:
        [row] = self.sql(f"SELECT * FROM {self.table} WHERE id = %s", key)
        return row

    def all(self) -> dict[Any, dict[str, Any]]:
        return {row["id"]: row for row in self.sql(f"TABLE {self.table}")}

    def events(self, key: object) -> list[dict[str, Any]]:
        """Return `data` of a job's events, in order."""
        rows = self.sql(
            'SELECT data FROM job_events WHERE "table" = %s AND job_id = %s ORDER BY id',
            self.table,
            str(key),
        )
        return [row["data"] for row in rows]

    def event_types(self, key: object) -> list[str]:
        return [event["type"] for event in self.events(key)]

    def now(self) -> Any:
        return self.sql("SELECT statement_timestamp() AS now")[0]["now"]


def _mark(value: object) -> str:
    return "statement_timestamp() + %s" if isinstance(value, timedelta) else "%s"
