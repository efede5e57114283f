"""One log line for each action, with the same pairs on the record as in the text."""

import json
import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.db.models.functions import Now

from jobreaper import LeaseLost, cancel, claim, reap, signals
from jobreaper.protocol.lease import Lease
from project.media.models import Job

pytestmark = pytest.mark.usefixtures("transactional_db")


def claimed(**columns: Any) -> Lease:
    lease = claim(Job, Job.objects.create(stage="clip", **columns).pk, worker="host:1:abc")
    assert lease is not None
    return lease


def lose(lease: Lease) -> None:
    Job.objects.filter(pk=lease.pk).update(lease_expires_at=Now() - timedelta(seconds=1))
    reap([Job])


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "jobreaper")
    return caplog


def the(lines: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    """Return the one record of an event."""
    [record] = [r for r in lines.records if getattr(r, "jobreaper", {}).get("event") == event]
    return record


def pairs(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = vars(record)["jobreaper"]
    return found


def test_a_claim_is_logged(lines: pytest.LogCaptureFixture) -> None:
    lease = claimed()
    record = the(lines, "job_claimed")
    assert (record.name, record.levelname) == ("jobreaper.leases", "INFO")
    assert record.getMessage() == (
        f"job_claimed table=jobs job={lease.pk} stage=clip attempt=1 epoch=1 worker=host:1:abc"
    )
    assert pairs(record) == {
        "event": "job_claimed",
        "table": "jobs",
        "job": lease.pk,
        "stage": "clip",
        "attempt": 1,
        "epoch": 1,
        "worker": "host:1:abc",
    }


def test_a_pair_without_a_value_is_left_out_of_the_text(lines: pytest.LogCaptureFixture) -> None:
    claim(Job, Job.objects.create().pk)
    record = the(lines, "job_claimed")
    assert "stage" not in record.getMessage()
    assert pairs(record)["stage"] is None


def test_a_finish_is_logged_with_its_duration(lines: pytest.LogCaptureFixture) -> None:
    claimed().finish()
    record = the(lines, "job_finished")
    assert record.levelname == "INFO"
    assert pairs(record)["duration_ms"] >= 0


def test_a_retry_is_a_warning_and_a_failure_an_error(lines: pytest.LogCaptureFixture) -> None:
    claimed().fail("E1")
    retried = the(lines, "job_retried")
    assert retried.levelname == "WARNING"
    assert pairs(retried)["fail_code"] == "E1"
    assert pairs(retried)["next_earliest_run_at"].endswith("Z")
    claimed().fail("E2", retry=False)
    failed = the(lines, "job_failed")
    assert failed.levelname == "ERROR"
    assert pairs(failed)["fail_code"] == "E2"


def test_a_release_is_logged(lines: pytest.LogCaptureFixture) -> None:
    claimed().release()
    assert the(lines, "job_released").levelname == "INFO"


def test_a_reap_is_logged_with_what_became_of_the_job(lines: pytest.LogCaptureFixture) -> None:
    lease = claimed()
    lose(lease)
    requeued = the(lines, "job_requeued")
    assert (requeued.name, requeued.levelname) == ("jobreaper.reaper", "INFO")
    assert pairs(requeued)["job"] == lease.pk
    assert pairs(requeued)["reason"] == "lease_expired"
    assert pairs(requeued)["locked_by"] == "host:1:abc"
    lose(claimed(max_attempts=1))
    failed = the(lines, "job_failed_by_reaper")
    assert failed.levelname == "WARNING"
    assert pairs(failed)["fail_code"] == "timeout"


def test_a_lost_lease_and_its_rejected_write_are_warnings(lines: pytest.LogCaptureFixture) -> None:
    lease = claimed()
    lose(lease)
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    lost = the(lines, "lease_lost")
    assert (lost.name, lost.levelname) == ("jobreaper.heartbeat", "WARNING")
    assert pairs(lost)["reason"] == "heartbeat"
    with pytest.raises(LeaseLost):
        lease.finish()
    rejected = the(lines, "stale_write_rejected")
    assert rejected.levelname == "WARNING"
    assert pairs(rejected)["verb"] == "finish"
    assert pairs(rejected)["present_status"] == "queued"


def test_a_rejected_write_is_logged_whatever_becomes_of_its_transaction(
    lines: pytest.LogCaptureFixture,
) -> None:
    lease = claimed()
    lose(lease)
    with pytest.raises(LeaseLost), transaction.atomic():
        lease.finish()
    assert the(lines, "stale_write_rejected")


def test_a_beat_that_failed_is_a_warning(lines: pytest.LogCaptureFixture) -> None:
    missed = OperationalError("the database is away")
    signals.heartbeat_failed.send_robust(Job, alias="default", table="jobs", error=missed, leases=2)
    record = the(lines, "heartbeat_failed")
    assert (record.name, record.levelname) == ("jobreaper.heartbeat", "WARNING")
    assert record.getMessage() == (
        'heartbeat_failed database=default table=jobs leases=2 error="the database is away"'
    )


def test_a_change_by_hand_says_who_did_what(lines: pytest.LogCaptureFixture) -> None:
    job = Job.objects.create()
    cancel(Job, [job.pk], by="ann", reason="not needed")
    record = the(lines, "job_changed_by_hand")
    assert (record.name, record.levelname) == ("jobreaper.control", "INFO")
    assert pairs(record)["did"] == "admin:cancelled"
    assert pairs(record)["by"] == "ann"


def test_a_pass_is_logged_and_one_with_errors_is_an_error(
    lines: pytest.LogCaptureFixture, second_connection: Any
) -> None:
    reap([Job])
    good = the(lines, "pass_finished")
    assert good.levelname == "INFO"
    assert pairs(good)["errors"] is None
    lines.clear()
    second_connection.execute("ALTER TABLE jobs RENAME COLUMN reap_count TO away")
    second_connection.commit()
    try:
        reap([Job])
    finally:
        second_connection.execute("ALTER TABLE jobs RENAME COLUMN away TO reap_count")
        second_connection.commit()
    bad = the(lines, "pass_finished")
    assert bad.levelname == "ERROR"
    assert "reap_count" in pairs(bad)["errors"]


@pytest.mark.parametrize("by", ["ann", "ann of ops", "two\nlines", "", 'says "so"', "a=b"])
def test_a_line_is_one_line_and_can_be_parsed_back_into_its_pairs(
    lines: pytest.LogCaptureFixture, by: str
) -> None:
    job = Job.objects.create()
    cancel(Job, [job.pk], by=by)
    text = the(lines, "job_changed_by_hand").getMessage()
    event, _, rest = text.partition(" ")
    assert event == "job_changed_by_hand"
    assert "\n" not in text
    found = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', rest)
    assert {key: json.loads(word) if word[0] == '"' else word for key, word in found} == {
        "table": "jobs",
        "job": str(job.pk),
        "did": "admin:cancelled",
        "by": by,
    }
