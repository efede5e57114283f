"""Heartbeats where the database refuses to write one of the rows."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from jobreaper import claim_next, signals
from jobreaper.db import in_words
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.renewing import renew
from jobreaper.tables import table_of
from project.media.models import Job
from tests.protocol.heartbeat.conftest import Beats, last_beat
from tests.refusals import WAYS, refusing
from tests.rows import Rows, Sql
from tests.waiting import until


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """The heartbeats that failed, as the signal tells of them."""
    found: list[dict[str, Any]] = []

    def note(**arguments: Any) -> None:
        found.append(arguments)

    signals.heartbeat_failed.connect(note)
    yield found
    signals.heartbeat_failed.disconnect(note)


SAID = {
    "check": "violates check constraint",
    "failed assertion": "assertion failed",
    "suppressing trigger": "a trigger or a rule suppressed the write of 1 row(s)",
}


@pytest.mark.parametrize("way", WAYS)
def test_one_row_that_cannot_be_renewed_costs_no_other_its_lease(
    way: str, sql: Sql, told: list[dict[str, Any]]
) -> None:
    jobs = Rows(sql)
    for n in range(9):
        jobs.plant(payload='{"bad": true}' if n == 4 else "{}")
    leases = claim_next(Job, 9)
    before = {lease.pk: last_beat(lease) for lease in leases}
    [bad] = [lease.pk for lease in leases if "bad" in lease.job.payload]
    with refusing(sql, "jobs", way):
        all_of_them = [holding_of(lease) for lease in leases]
        # It needs no quick repetition.
        assert renew(lambda: connection, "default", table_of(Job), all_of_them)
    renewed = {lease.pk for lease in leases if last_beat(lease) != before[lease.pk]}
    assert renewed == before.keys() - {bad}
    assert [one["leases"] for one in told] == [1]
    assert SAID.get(way, "not this one") in in_words(told[0]["error"])


def test_the_thread_beats_around_it(sql: Sql, beats: Beats) -> None:
    jobs = Rows(sql)
    for payload in ('{"bad": true}', "{}", "{}"):
        jobs.plant(payload=payload)
    leases = claim_next(Job, 3)
    [_, *good] = sorted(leases, key=lambda lease: "bad" not in lease.job.payload)
    with refusing(sql, "jobs", "trigger"):
        heartbeat.heart.add(*map(holding_of, leases))
        for lease in good * 2:
            before = last_beat(lease)
            until(lambda lease=lease, before=before: last_beat(lease) != before)  # type: ignore[misc]


def test_a_table_that_nobody_can_write_is_asked_once_more_and_not_row_by_row(
    sql: Sql, told: list[dict[str, Any]]
) -> None:
    jobs = Rows(sql)
    for _ in range(9):
        jobs.plant()
    leases = claim_next(Job, 9)
    sql("ALTER TABLE jobs RENAME COLUMN deadline_at TO away")
    try:
        held = [holding_of(lease) for lease in leases]
        assert not renew(lambda: connection, "default", table_of(Job), held)
    finally:
        sql("ALTER TABLE jobs RENAME COLUMN away TO deadline_at")
    assert [one["leases"] for one in told] == [9]
