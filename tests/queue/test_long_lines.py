"""Claims pass over a long line of jobs that are not for them, and take the same jobs in the same
order as those that look along the line.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from jobreaper import claim_next, pause
from jobreaper.models import Job
from jobreaper.protocol import lines
from jobreaper.protocol.batch import claim_group
from jobreaper.tables import table_of
from jobreaper.tables.statements import kinds

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["looks to the end", "ends its look at once", "knows the line"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How long claims look along the line, and whether they know that it is long."""
    way: str = request.param
    table = table_of(Job)
    made = (table._statements, table._limited_statements)
    for statements in made:
        statements.pop("claim", None)
    monkeypatch.setattr(kinds, "LOOK_MS", -1 if way == "ends its look at once" else 3_600_000)
    if way == "knows the line":
        lines.note_long(table)
    yield way
    for statements in made:
        statements.pop("claim", None)


def plant(name: str, *, due_sec: float | None, **fields: Any) -> None:
    run_at = None if due_sec is None else timezone.now() + timedelta(seconds=due_sec)
    given = {"type": "mail", "stage": "mail", **fields}
    Job.objects.create(org_id=name, next_earliest_run_at=run_at, **given)


@pytest.fixture
def line(db: None) -> None:
    """Jobs in their order, except that some are not due."""
    plant("urgent, later", due_sec=3600, priority=9)
    plant("urgent fax", due_sec=-10, priority=9, type="fax", stage="fax")
    plant("urgent", due_sec=-1, priority=9)
    plant("urgent, no time", due_sec=None, priority=9)
    plant("fax", due_sec=-50, type="fax", stage="fax")
    plant("first", due_sec=-40)
    plant("slow", due_sec=-30, queue="slow")
    plant("print", due_sec=-20, type="print", stage="press")
    plant("second", due_sec=-10)
    plant("later", due_sec=60)
    plant("low", due_sec=-90, priority=-9)


ALL = ["urgent fax", "urgent", "urgent, no time", "fax", "first", "slow", "print", "second", "low"]


@pytest.mark.parametrize(
    ("wanted", "paused", "left_out"),
    [
        ({}, (), ()),
        ({}, ("fax",), ("urgent fax", "fax")),
        ({}, ("press", "queue:slow"), ("slow", "print")),
        ({"types": ["mail"]}, (), ("urgent fax", "fax", "print")),
        ({"types": ["mail", "print"], "stages": ["press"]}, (), {*ALL} - {"print"}),
        ({"queues": ["slow"]}, (), {*ALL} - {"slow"}),
        ({"types": ["telex"]}, (), ALL),
    ],
    ids=["all", "a paused type", "a stage and a queue", "types", "a stage", "a queue", "none"],
)
def test_a_claim_takes_what_is_for_it_in_order(
    wanted: dict[str, Any], paused: tuple[str, ...], left_out: Any, way: str, line: None
) -> None:
    for name in paused:
        pause(name)
    expected = [name for name in ALL if name not in left_out]
    taken: list[str | None] = []
    for n in (1, 2, 100):
        runs = claim_group(table_of(Job), n, **wanted)
        assert len(runs) == min(n, len(expected) - len(taken))
        taken += [run.lease.job.org_id for run in runs]
    assert taken == expected
    assert Job.objects.running().count() == len(expected)


@override_settings(JOBREAPER={"STAGES": {"mail": {"max_running": 2}}})
def test_a_claim_passes_over_full_stages(way: str, line: None) -> None:
    assert {lease.job.org_id for lease in claim_next(Job, 100)} == {
        "urgent fax",
        "urgent",
        "urgent, no time",
        "fax",
        "print",
    }
    assert claim_next(Job, 100) == []


def test_a_claim_that_met_a_long_line_is_remembered(way: str, line: None) -> None:
    pause("fax")
    assert [lease.job.org_id for lease in claim_next(Job)] == ["urgent"]
    assert lines.is_long(table_of(Job)) == (way != "looks to the end")


def test_a_line_without_strangers_is_read_in_one_go(way: str, line: None) -> None:
    lines._long.clear()
    assert len(claim_next(Job, 100)) == len(ALL)
    assert not lines.is_long(table_of(Job))
