"""Every line of the log, and everything that is logged."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from jobreaper import (
    LeaseLost,
    cancel,
    claim,
    enqueue,
    enqueue_many,
    logs,
    pause,
    reap,
    requeue,
    resume,
    signals,
)
from jobreaper.models import Job as OwnJob
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.protocol.lease import Lease
from jobreaper.states import Status
from jobreaper.tables import table_of
from project.media.models import Job
from tests.committed import transactional_db

__all__ = ["transactional_db"]

Lines = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The records of the package's own loggers."""
    caplog.set_level(logging.DEBUG, "jobreaper")
    return lambda: [r for r in caplog.records if r.name.startswith("jobreaper")]


def do_everything(secret: str) -> None:
    """Make each event happen, with a secret in every place where a job may have one."""
    payload = {"token": secret}

    def claimed(**columns: Any) -> Lease:
        lease = claim(Job, Job.objects.create(stage="clip", payload=payload, **columns).pk)
        assert lease is not None
        return lease

    def lose(*leases: Lease) -> None:
        pks = [lease.pk for lease in leases]
        Job.objects.filter(pk__in=pks).update(lease_expires_at=Now() - timedelta(seconds=1))
        reap([Job])

    claimed().finish()
    claimed().fail("E1", secret)
    claimed().fail("E2", secret, retry=False)
    claimed().release()
    lost = claimed()
    lose(lost, claimed(max_attempts=1))
    for verb in (lost.heartbeat, lost.finish):
        with pytest.raises(LeaseLost):
            verb()
    cancel(Job, [lost.pk], by="ann", reason=secret)
    requeue(Job, [lost.pk], by="ann", reason=secret)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "MOST_LINES", 1)
        lose(*(claimed() for _ in range(2)), *(claimed(max_attempts=1) for _ in range(2)))
    error = OperationalError(f"the database is away\nDETAIL: Failing row contains ({secret}).")
    signals.ending_refused.send(Job, lease=lost, verb="finish", error=error)
    signals.heartbeat_failed.send(Job, alias="default", table="jobs", error=error, leases=2)
    refused = {"table": "jobs", "pk": lost.pk, "event": "admin:cancelled", "by": "ann"}
    signals.change_refused.send(Job, error=error, **refused)
    enqueue("mail", payload, dedupe="skip", dedupe_key=secret)
    enqueue_many([{"type": "mail", "payload": payload}] * 3)
    for n in (1, 3):
        finish_group(claim_group(table_of(OwnJob), n, types=["mail"]))
    assert OwnJob.objects.filter(status=Status.SUCCESS).count() == 4
    pause("mail", by="ann", reason=secret)
    resume("mail", by="ann")
