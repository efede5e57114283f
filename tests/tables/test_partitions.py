"""Partitioned job tables: the how-to as it is written, and the whole life of jobs in one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import models
from django.db.models.functions import Now
from django.test.utils import isolate_apps

from jobreaper import LeaseLost, claim, claim_next, reap
from jobreaper.base import LeasedJob
from tests.rows import Sql
from tests.tables.conftest import Adopt, Make, meta_of

pytestmark = pytest.mark.usefixtures("transactional_db")

PAGE = Path(__file__).parents[2] / "docs" / "partitions.md"
CREATE, MOVE, DROP = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
KEYS = {
    "RANGE (created_at)": (
        "FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')",
        "created_at",
    ),
    "LIST (org)": ("FOR VALUES IN ('old')", "org"),
    "LIST (status)": ("FOR VALUES IN ('success', 'failed', 'cancelled')", "status"),
}


@pytest.fixture(params=KEYS)
def render(request: pytest.FixtureRequest, make: Make, adopt: Adopt, sql: Sql) -> Any:
    """A job table that is partitioned as the page says, or by another key."""
    with isolate_apps("project.documents"):
        attributes = {
            "created_at": models.DateTimeField(db_default=Now()),
            "org": models.TextField(default="new"),
            "Meta": meta_of("renders"),
            "__module__": __name__,
        }
        model = type("Render", (LeasedJob,), attributes)
    make(model)
    adopt(model)
    values, column = KEYS[request.param]
    text = CREATE.replace("RANGE (created_at)", request.param)
    text = text.replace("FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')", values)
    sql(text.replace("PRIMARY KEY (id, created_at)", f"PRIMARY KEY (id, {column})"))
    return model


def places(sql: Sql) -> dict[int, str]:
    rows = sql("SELECT id, tableoid::regclass::text AS place FROM renders")
    return {row["id"]: row["place"] for row in rows}


def test_jobs_live_their_lives_in_partitions(render: Any, sql: Sql) -> None:
    november = {"created_at": "2026-11-15T00:00Z", "org": "old"}
    done, lost, failing, new = (render.objects.create(**each).pk for each in [november] * 3 + [{}])
    leases = {lease.pk: lease for lease in claim_next(render, 4)}
    assert list(leases) == [done, lost, failing, new]
    for lease in leases.values():
        lease.heartbeat()
    leases[done].job.save()
    leases[done].finish()
    leases[failing].fail("E", retry=True)
    leases[new].release()
    sql("UPDATE renders SET lease_expires_at = now() - interval '1 s' WHERE id = %s", lost)
    assert reap([render]).requeued_ids == {"renders": [lost]}
    with pytest.raises(LeaseLost):
        leases[lost].finish()

    assert claim(render, new) is not None
    states = dict(render.objects.values_list("pk", "status"))
    assert states == {done: "success", lost: "queued", failing: "queued", new: "processing"}
    assert places(sql)[done] == "renders_2026_11"


@pytest.mark.parametrize("render", ["RANGE (created_at)"], indirect=True)
def test_a_month_is_dropped_as_the_page_says(render: Any, sql: Sql) -> None:
    november = "2026-11-15T00:00Z"
    done, waiting = (render.objects.create(created_at=november).pk for _ in range(2))
    lease = claim(render, done)
    assert lease is not None
    lease.finish()
    move, left = MOVE.strip().splitlines()
    # Today may be in the month that the page drops.
    sql(move.replace("now()", "'2027-01-15'"))
    assert sql(left) == [{"count": 0}]
    sql(DROP)
    assert places(sql) == {waiting: "renders_later"}
    assert [lease.pk for lease in claim_next(render, 9)] == [waiting]
