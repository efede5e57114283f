"""Small tables of chores, their models, and a pass over one."""

from __future__ import annotations

from typing import Any

from django.db import models

import jobreaper
from jobreaper.tables.jobtable import JobTable


def model(table: str = "chores", **fields: models.Field[Any, Any] | None) -> type[models.Model]:
    """An unmanaged model of a table with a status, a start and whatever else is given."""
    meta = type("Meta", (), {"app_label": "chores", "managed": False, "db_table": table})
    given = {
        "status": models.TextField(),
        "claimed_at": models.DateTimeField(null=True),
        **fields,
        "Meta": meta,
        "__module__": __name__,
    }
    name = f"Chore{next(numbers)}"
    return type(name, (models.Model,), given)


numbers = iter(range(1_000_000))


COMMON = "status text NOT NULL DEFAULT 'processing', claimed_at timestamptz DEFAULT '2020-01-01'"


def reaped(table: JobTable) -> dict[Any, str]:
    dry = jobreaper.reap([table.model], dry_run=True)
    result = jobreaper.reap([table.model])
    assert result.all_errors == []
    assert sorted(map(str, dry.requeued_ids[table.name])) == sorted(
        map(str, result.requeued_ids[table.name])
    )
    return {
        **dict.fromkeys(result.requeued_ids[table.name], "requeued"),
        **dict.fromkeys(result.failed_ids[table.name], "failed"),
    }
