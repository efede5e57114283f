"""docs/database.md: what each verb costs, counted."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

import jobreaper
from jobreaper.protocol.lease import Lease
from project.media.models import Job
from tests.docs import markdown

pytestmark = pytest.mark.usefixtures("transactional_db")

ROWS = markdown.rows(markdown.section(markdown.page("database"), "Statements and round trips"))
COSTS = {row[0].split(",")[0]: (int(row[1]), int(row[2])) for row in ROWS}


def cost(action: Callable[[], object]) -> tuple[int, int]:
    """Statements, and round trips with those that begin and end a transaction."""
    with CaptureQueriesContext(connection) as captured:
        action()
    texts = [query["sql"] for query in captured.captured_queries]
    return len([text for text in texts if text not in ("BEGIN", "COMMIT")]), len(texts)


def claimed() -> Lease:
    lease = jobreaper.claim(Job, Job.objects.create().pk)
    assert lease is not None
    return lease


def test_what_a_worker_sends(settings: Settings) -> None:
    # The first claim on a connection takes the worker's lock there.
    claimed().finish()
    Job.objects.bulk_create([Job(), Job()])
    assert cost(lambda: jobreaper.claim_next(Job, 2)) == COSTS["claim"]
    assert cost(claimed().finish) == COSTS["finish"]
    assert cost(partial(claimed().fail, "oops")) == COSTS["fail"]
    assert cost(claimed().release) == COSTS["release"]
    settings.JOBREAPER = {"STAGES": {"clip": {"max_running": 1}}}
    assert (
        cost(lambda: jobreaper.claim_next(Job)) == COSTS["claim where a stage has a `max_running`"]
    )
    settings.JOBREAPER = {}
    lease = claimed()
    assert cost(lease.heartbeat) == COSTS["heartbeat"]
    assert cost(lease.job.save) == COSTS["lease.job.save()"]
    assert cost(lambda: jobreaper.cancel(Job, [lease.pk], by="ann")) == COSTS["requeue"]

    def finish_too_late() -> None:
        with suppress(jobreaper.LeaseLost):
            lease.finish()

    assert cost(finish_too_late) == COSTS["a verb that is rejected"]


def test_what_a_pass_sends() -> None:
    def expire() -> None:
        Job.objects.filter(pk=claimed().pk).update(lease_expires_at="2026-01-01T00:00Z")

    assert cost(lambda: jobreaper.reap([Job])) == COSTS["a pass that finds nothing to do"]
    expire()
    one_batch = cost(lambda: jobreaper.reap([Job]))
    assert one_batch == COSTS["a pass that reaps one batch"]
    expire()
    two_batches = cost(lambda: jobreaper.reap([Job], batch_size=1))
    parts = [one_batch, COSTS["a further batch of a pass"]]
    assert two_batches == tuple(map(sum, zip(*parts, strict=True)))
