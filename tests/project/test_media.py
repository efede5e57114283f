"""The media tables take rows from clients that know nothing of leases."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize("table", ["jobs", "asr_jobs"])
def test_an_insert_from_before_jobreaper_makes_a_queued_job(
    sql: Callable[..., list[dict[str, Any]]], table: str
) -> None:
    [row] = sql(f"INSERT INTO {table} (stage) VALUES ('clip') RETURNING *")
    assert (row["status"], row["attempt_count"], row["max_attempts"]) == ("queued", 0, 3)
    assert (row["lease_epoch"], row["reap_count"], row["lease_expires_at"]) == (0, 0, None)
