"""Tables of other products are adopted by nothing but what `docs/adoption.md` says."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import isolate_apps

import jobreaper
from jobreaper import table_checks
from jobreaper.schema import functions
from jobreaper.tables import adoption
from jobreaper.tables.jobtable import JobTable
from jobreaper.tables.shape import EXTRA_FIELDS
from tests.docs import markdown
from tests.rows import Rows
from tests.tables.conftest import Create
from tests.tables.shapes import SHAPES, Shape

pytestmark = pytest.mark.usefixtures("transactional_db")

PAGE = markdown.page("adoption")
EXAMPLES = markdown.section(PAGE, "Complete examples")


def adopt_by_the_book(rows: Rows, heading: str) -> JobTable:
    """Do what the example says, to the letter."""
    text = markdown.section(EXAMPLES, heading)
    for _, code in markdown.blocks(text, "sql"):
        for statement in code.split(";\n"):
            if statement.strip():
                rows.sql(statement)
    [(_, code)] = markdown.blocks(text, "python")
    with isolate_apps("project.documents"):
        exec(compile(code, heading, "exec"), {"__name__": "project.documents.models"})  # noqa: S102
    return list(adoption._tables.values())[-1]


@pytest.fixture(params=SHAPES)
def heading(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shape(heading: str) -> Shape:
    return SHAPES[heading]


@pytest.fixture
def rows(shape: Shape, create: Create) -> Rows:
    return create(shape.definition, *shape.drop)


@pytest.fixture
def table(rows: Rows, heading: str) -> Iterator[JobTable]:
    adopted = adopt_by_the_book(rows, heading)
    yield adopted
    del adoption._tables[adopted.model]


def test_every_example_is_tried() -> None:
    assert markdown.headings(EXAMPLES, 3) == list(SHAPES)


def test_a_lost_job_is_reclaimed_and_a_healthy_one_is_not(
    table: JobTable, rows: Rows, shape: Shape
) -> None:
    lost = rows.sql(shape.lost)[0]["id"]
    healthy = rows.sql(shape.healthy)[0]["id"]
    before = row(rows, table, healthy)
    result = jobreaper.reap([table.model])
    assert result.all_errors == []
    assert result.requeued_ids[shape.table] == ([lost] if shape.outcome == "requeued" else [])
    assert result.failed_ids[shape.table] == ([lost] if shape.outcome == "failed" else [])
    after = row(rows, table, lost)
    assert {name: after[name] for name in shape.after} == shape.after
    assert row(rows, table, healthy) == before


def test_its_functions_and_views_work(table: JobTable, rows: Rows, shape: Shape) -> None:
    for made in [functions.policies(connection), *functions.of_table(table, connection)]:
        made.create(connection)
    try:
        lost = rows.sql(shape.lost)[0]["id"]
        [shown] = rows.sql(f"TABLE {shape.table}_stale_monitor")
        assert (shown["job_id"], shown["state"]) == (str(lost), "stale")
        reaped = rows.sql(f"SELECT * FROM {shape.table}_reap()")
        assert reaped == [{"job_id": str(lost), "outcome": shape.outcome}]
        [past] = rows.sql(f"TABLE {shape.table}_reclaim_history")
        assert past["job_id"] == str(lost)
    finally:
        for made in reversed(functions.of_table(table, connection)):
            made.drop(connection)


def test_the_check_names_what_is_missing(
    table: JobTable, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    messages = table_checks.check_adopted_tables(None)
    named = [line for message in messages for line in message.msg.splitlines()[1:]]
    assert {line.split(":")[0].removeprefix("- ") for line in named} == shape.missing


def row(rows: Rows, table: JobTable, key: object) -> dict[str, object]:
    statement = f"SELECT * FROM {table.name} WHERE {table.key_columns[0]} = %s"
    [found] = rows.sql(statement, key)
    return found


def test_the_page_tells_the_costs_that_the_check_tells() -> None:
    told = {
        markdown.code(part)[0]: cost
        for part, _, cost in markdown.rows(markdown.section(PAGE, "Parts"))
    }
    costs = {**table_checks.COSTS_TO_RECLAIM, **table_checks.COSTS_TO_LEASE}
    assert {part: told[part] for part in costs} == costs
    assert told.keys() - costs.keys() == {"status", "updated_at"}


def test_the_page_tells_of_every_field_that_is_used() -> None:
    rows = markdown.rows(markdown.section(PAGE, "Other fields that are used"))
    assert {markdown.code(name)[0] for name, *_ in rows} == EXTRA_FIELDS.keys()
