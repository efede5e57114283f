"""What tests of other products' models share: a pass, the monitor, the checks."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import Error
from django.db import connection, models
from django.utils import timezone

import jobreaper
from jobreaper import checks, table_checks
from jobreaper.schema import functions
from jobreaper.schema.objects import Installed
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables.conftest import Make

Model = type[models.Model]


States = Callable[[JobTable], dict[str, str]]


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
        for each in functions.of_table(table, connection):
            each.create(connection)
            there.append(each)
        return {row["job_id"]: row["state"] for row in sql(f"TABLE {table.name}_stale_monitor")}

    yield run
    for each in there:
        each.drop(connection)


def complaints(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for module in (checks, table_checks):
        monkeypatch.setattr(module, "job_tables", lambda: [table])
    found = [*table_checks.check_adopted_tables(None), *checks.check_databases(None)]
    return [str(message.id) for message in found if isinstance(message, Error)]
