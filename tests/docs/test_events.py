"""docs/events.md, compared with the events that the verbs really write."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from django.utils.timezone import now

import jobreaper
from jobreaper import moving
from jobreaper.db import fetch
from jobreaper.models import Job as ReadyMade
from jobreaper.models import JobEvent
from jobreaper.moving import OldJob
from jobreaper.protocol.holding import holding_of
from jobreaper.protocol.lease import Lease
from jobreaper.reaper import dead_workers
from jobreaper.states import EventType
from jobreaper.tables import table_of
from project.media.models import Job
from tests.docs import markdown

pytestmark = pytest.mark.usefixtures("transactional_db")

ROWS = markdown.rows(markdown.section(markdown.page("events"), "Types"))
TYPES = {markdown.code(row[0])[0]: row[2] for row in ROWS if len(row) == 3}
SHORTHAND = {row[0]: row[1] for row in ROWS if row[0].startswith("*")}
PAST = "2026-01-01T00:00Z"


def claimed(**fields: Any) -> Lease:
    lease = jobreaper.claim(Job, Job.objects.create(**fields).pk)
    assert lease is not None
    return lease


def reaped(job: dict[str, Any], **changes: Any) -> None:
    Job.objects.filter(pk=claimed(**job).pk).update(lease_expires_at=PAST, **changes)
    jobreaper.reap([Job], hold=False)


def stalled() -> None:
    lease = jobreaper.claim(ReadyMade, jobreaper.enqueue("mail", max_attempts=1).pk)
    assert lease is not None
    ReadyMade.objects.update(
        claimed_at=now() - timedelta(hours=1),
        stalls_at=now() - timedelta(seconds=1),
        lease_expires_at=now() - timedelta(seconds=1),
    )
    jobreaper.reap([ReadyMade], hold=False)


def rejected() -> None:
    lease = claimed()
    jobreaper.cancel(Job, [lease.pk], by="ann")
    with suppress(jobreaper.LeaseLost):
        lease.finish()


def for_later() -> ReadyMade:
    return jobreaper.enqueue("mail", run_at=now() + timedelta(days=1))


def traced() -> None:
    lease = claimed()
    statement = holding_of(lease).table.statement("traced")
    fetch(
        holding_of(lease).table.connection(),
        statement,
        {
            "id": holding_of(lease).key,
            "worker": lease.worker,
            "stage": None,
            "attempt": 1,
            "epoch": lease.epoch,
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
    )


def carried_over() -> None:
    Job.objects.create()
    done = OldJob(type="mail", status="success")
    moving.carry_over(Job.objects.all(), lambda row: done)


WRITE: Final[dict[EventType, Callable[[], object]]] = {
    EventType.JOB_ENQUEUED: lambda: jobreaper.enqueue("mail"),
    EventType.JOB_CARRIED_OVER: carried_over,
    EventType.JOB_TRACED: traced,
    EventType.JOB_FINISHED: lambda: claimed().finish(),
    EventType.JOB_RETRIED: lambda: claimed().fail("oops", "said so"),
    EventType.JOB_FAILED: lambda: claimed().fail("oops", retry=False),
    EventType.JOB_RELEASED: lambda: claimed().release(),
    EventType.JOB_STALE_WRITE_REJECTED: rejected,
    EventType.JOB_WORKER_LOST: lambda: dead_workers.give_back(
        table_of(Job), claimed().worker, "killed by SIGKILL"
    ),
    EventType.JOB_CANCELLED: lambda: jobreaper.cancel(
        Job, [claimed().pk], by="a program", event=EventType.JOB_CANCELLED
    ),
    EventType.REAPER_REQUEUED: lambda: reaped({}),
    EventType.REAPER_FAILED_TIMEOUT: lambda: reaped({"max_attempts": 1}),
    EventType.REAPER_FAILED_DEADLINE: lambda: reaped({"max_attempts": 1}, deadline_at=PAST),
    EventType.REAPER_FAILED_STALLED: stalled,
    EventType.REAPER_FAILED_POISON: lambda: reaped({"stage": "cursed"}),
    EventType.ADMIN_RUN_NOW: lambda: jobreaper.run_now(ReadyMade, [for_later().pk], by="ann"),
    EventType.ADMIN_REQUEUED: lambda: jobreaper.requeue(Job, [claimed().pk], by="ann"),
    EventType.ADMIN_FAILED: lambda: jobreaper.fail(Job, [claimed().pk], by="ann"),
    EventType.ADMIN_CANCELLED: lambda: jobreaper.cancel(Job, [claimed().pk], by="ann"),
}


def test_every_type_is_there_and_no_other() -> None:
    assert sorted(TYPES) == sorted(EventType)


@pytest.mark.parametrize("event_type", WRITE)
def test_the_details_have_the_keys_that_are_listed(event_type: EventType, settings: Any) -> None:
    settings.JOBREAPER = {"STAGES": {"cursed": {"max_reaps": 1}}}
    listed = TYPES[event_type]
    for name, keys in SHORTHAND.items():
        listed = listed.replace(name, keys.partition(";")[0])

    WRITE[event_type]()

    event = JobEvent.objects.get(type=event_type)
    assert sorted(event.details) == sorted(markdown.code(listed))
    assert sorted(event.data) == ["at", "details", "table", "type"]


def test_events_of_the_ready_made_table_have_what_metering_wants() -> None:
    lease = jobreaper.claim(ReadyMade, jobreaper.enqueue("mail", org_id="acme").pk)
    assert lease is not None
    lease.finish()
    more = markdown.code(SHORTHAND["*attempt*"].partition(";")[2])
    details = JobEvent.objects.get(type=EventType.JOB_FINISHED).details
    assert {key: details[key] for key in more} == {"type": "mail", "org_id": "acme"}
