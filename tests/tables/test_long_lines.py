"""A table of one's own with the index by kind, without types, queues and priorities."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import isolate_apps

from jobreaper import claim_next, pause
from jobreaper.base import LeasedJob, index_by_kind
from jobreaper.protocol import lines
from jobreaper.tables import table_of
from jobreaper.tables.statements import kinds
from tests.tables.conftest import Adopt, Make, meta_of

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_its_claims_pass_over_a_paused_stage(
    make: Make, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolate_apps("project.documents"):
        meta: Any = meta_of("chores")
        meta.indexes = [index_by_kind("chores")]
        chore: Any = type("Chore", (LeasedJob,), {"Meta": meta, "__module__": __name__})
    make(chore)
    adopt(chore)
    with connection.cursor() as cursor:
        indexes = connection.introspection.get_constraints(cursor, "chores")
    assert "idx_chores_queued_kind" in indexes
    monkeypatch.setattr(kinds, "LOOK_MS", -1)
    stages = ["paused", "paused", "a", None, "b", "paused", "a"]
    made = [chore.objects.create(stage=stage).pk for stage in stages]
    pause("paused", model=chore)
    wanted = [pk for pk, stage in zip(made, stages, strict=True) if stage != "paused"]
    assert [lease.pk for lease in claim_next(chore, 2)] == wanted[:2]
    assert lines.is_long(table_of(chore))
    assert [lease.pk for lease in claim_next(chore, 9, stages=["a", "b"])] == wanted[2:]
    assert claim_next(chore) == []
