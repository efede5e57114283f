"""A job's page: what may be edited, what may be done, and the timeline."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db.models.signals import pre_save
from django.test import Client, RequestFactory

import jobreaper
from jobreaper import control
from jobreaper.admin.jobs import LEASE_LINES, LeasedJobAdmin
from jobreaper.base import PROTOCOL_FIELDS
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent
from jobreaper.states import EventType
from project.media.models import AsrJob, Job
from tests.admin.conftest import claimed, execute, job_of, make_job
from tests.admin.pages import html, list_of, page_of, text

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"
EDITED = {"stage": "clip", "max_attempts": "3", "expected_duration_ms": "", "payload": '{"a": 1}'}


# Editing


def test_every_field_of_the_protocol_is_on_the_page() -> None:
    shown = {name for line in LEASE_LINES for name in line}
    assert shown == PROTOCOL_FIELDS | {"lease"}


def test_a_job_that_nobody_holds_has_a_dash_for_its_lease(superuser: Client) -> None:
    page = text(html(superuser, page_of(make_job())))
    assert re.search(r"Lease: *- ", page)
    assert "None" not in page


def test_no_field_of_the_protocol_is_in_the_form(superuser: Client) -> None:
    form = superuser.get(page_of(make_job())).context["adminform"].form
    assert set(form.fields) == {"stage", "max_attempts", "expected_duration_ms", "payload"}
    form = superuser.get(list_of(Job) + "add/").context["adminform"].form
    assert set(form.fields) == {"stage", "max_attempts", "expected_duration_ms", "payload"}


def test_a_posted_lease_field_is_not_written(superuser: Client) -> None:
    lease = claimed()
    forged = {"status": "success", "lease_epoch": "99", "locked_by": "me", "attempt_count": "0"}
    response = superuser.post(page_of(lease.job), {**EDITED, **forged})
    assert response.status_code == 302
    job = job_of(lease)
    assert job.payload == {"a": 1}
    assert (job.status, job.lease_epoch, job.locked_by) == ("processing", 1, lease.worker)


@pytest.fixture
def claim_before_save() -> Iterator[None]:
    """A worker claims the job after the form has read it and before it is saved."""

    def claim(sender: type[Job], instance: Job, **_: Any) -> None:
        execute(
            "UPDATE jobs SET status = 'processing', lease_epoch = 7, locked_by = 'w',"
            " lease_expires_at = now() + interval '1 h' WHERE id = %s",
            instance.pk,
        )

    pre_save.connect(claim, sender=Job)
    yield
    pre_save.disconnect(claim, sender=Job)


def test_a_claim_while_the_form_is_saved_is_not_written_over(
    superuser: Client, claim_before_save: None
) -> None:
    job = make_job()
    superuser.post(page_of(job), EDITED)
    job.refresh_from_db()
    assert (job.status, job.lease_epoch, job.locked_by) == ("processing", 7, "w")
    assert job.payload == {"a": 1}


def test_a_stage_left_empty_stays_null(superuser: Client) -> None:
    job = make_job(stage=None)
    superuser.post(page_of(job), {**EDITED, "stage": ""})
    job.refresh_from_db()
    assert job.stage is None
    assert job.payload == {"a": 1}


def test_a_job_added_by_hand_is_queued(superuser: Client) -> None:
    superuser.post(list_of(Job) + "add/", {**EDITED, "status": "success"})
    assert Job.objects.get().status == "queued"
    superuser.post(
        list_of(OwnJob) + "add/",
        {
            "type": "mail",
            "payload": '{"to": "x"}',
            "priority": "0",
            "max_attempts": "3",
            "org_id": "",
            "dedupe_key": "",
        },
    )
    own = OwnJob.objects.get()
    assert (own.status, own.org_id, own.dedupe_key) == ("queued", None, None)


def test_an_empty_payload_is_a_mistake_and_an_empty_object_is_none(superuser: Client) -> None:
    job = make_job(payload={"a": 1})
    page = superuser.post(page_of(job), {**EDITED, "payload": ""}).content.decode()
    assert "Enter a valid JSON." in page
    superuser.post(page_of(job), {**EDITED, "payload": "{}"})
    job.refresh_from_db()
    assert job.payload == {}


def test_bad_input_keeps_what_was_typed(superuser: Client) -> None:
    job = make_job()
    response = superuser.post(page_of(job), {**EDITED, "payload": '{"a": 1', "stage": "asr"})
    page = response.content.decode()
    assert "Enter a valid JSON." in page
    assert "{&quot;a&quot;: 1" in page
    assert 'value="asr"' in page
    job.refresh_from_db()
    assert job.stage == "clip"


def test_a_layout_of_ones_own_is_kept_and_cannot_open_the_protocols_fields(
    superuser: Client, rf: RequestFactory
) -> None:
    class OwnAdmin(LeasedJobAdmin):
        fields = ("status", "stage")

    request = rf.get("/")
    request.user = User.objects.get(username="ada")
    job_admin = OwnAdmin(Job, site)
    for job in (None, make_job()):
        form = job_admin.get_form(request, job)
        assert set(form.base_fields) == {"stage"}
        assert job_admin.get_fieldsets(request, job) == [(None, {"fields": ("status", "stage")})]


# Buttons


@pytest.mark.parametrize(
    ("status", "buttons"),
    [
        ("queued", ["fail_jobs", "cancel_jobs"]),
        ("processing", ["requeue_jobs", "fail_jobs", "cancel_jobs"]),
        ("success", []),
        ("failed", ["requeue_jobs"]),
        ("cancelled", ["requeue_jobs"]),
    ],
)
def test_there_is_a_button_for_each_verb_that_applies(
    superuser: Client, status: str, buttons: list[str]
) -> None:
    page = html(superuser, page_of(make_job(status=status)))
    assert re.findall(r'<button name="action" value="(\w+)"', page) == buttons


def test_who_may_only_view_sees_the_timeline_and_no_button(
    staff: Callable[..., Client],
) -> None:
    lease = claimed()
    lease.finish()
    again = claimed()
    client = staff("media.view_job")
    assert "The worker finished the job" in html(client, page_of(lease.job))
    page = html(client, page_of(again.job))
    assert 'name="action"' not in page
    assert 'name="_save"' not in page


# The timeline


def entries(page: str) -> list[str]:
    timeline = page[page.index('id="jr-timeline-heading"') :]
    return [text(entry) for entry in re.findall(r"(?s)<li class=.*?</li>", timeline)]


def test_the_timeline_tells_the_story_of_a_job_oldest_first(superuser: Client) -> None:
    lost = claimed(worker="gpu-7:1:a")
    execute("UPDATE jobs SET lease_expires_at = now() - interval '41 s' WHERE id = %s", lost.pk)
    jobreaper.reap()
    with pytest.raises(jobreaper.LeaseLost):
        lost.finish()
    control.requeue(Job, [lost.pk], by="grace")
    execute("UPDATE jobs SET next_earliest_run_at = NULL WHERE id = %s", lost.pk)
    control.cancel(Job, [lost.pk], by="grace", reason="not needed")
    control.requeue(Job, [lost.pk], by="ada", reason="needed after all")
    last = jobreaper.claim(Job, lost.pk, worker="gpu-8:1:b")
    assert last is not None
    last.fail("OutOfMemory", "no room")
    execute(
        "UPDATE job_events SET at = timestamptz '2026-05-01 12:00:00+00'"
        " + interval '61 s' * (id - (SELECT min(id) FROM job_events))"
    )
    story = entries(html(superuser, page_of(lost.job)))
    heads = [
        "2026-05-01 12:00:00 The reaper gave the job back to the queue by ",
        "2026-05-01 12:01:01 + 1 min 1 s A write was rejected: the worker had lost the lease"
        " by gpu-7:1:a ",
        "2026-05-01 12:02:02 + 1 min 1 s An operator cancelled the job by grace ",
        "2026-05-01 12:03:03 + 1 min 1 s An operator gave the job back to the queue by ada ",
        "2026-05-01 12:04:04 + 1 min 1 s The attempt failed; the job went back to the queue"
        " by gpu-8:1:b ",
    ]
    assert len(story) == len(heads)
    for entry, head in zip(story, heads, strict=True):
        assert entry.startswith(head), entry
    told = r"attempt 1 epoch 1 reason lease_expired worker gpu-7:1:a overdue by (\d\d) s"
    assert 41 <= int(re.findall(told, story[0])[0]) < 60
    assert "rejected finish job was queued job's epoch 2" in story[1]
    assert "reason not needed was queued" in story[2]
    assert "fail code OutOfMemory fail reason no room" in story[4]
    assert '"fail_code": "OutOfMemory"' in story[4]


def test_the_page_begins_with_the_state_the_buttons_and_the_timeline(superuser: Client) -> None:
    lease = claimed()
    page = html(superuser, page_of(lease.job))
    state = page.index('class="module jr-state"')
    shown = text(page[state : page.index("Timeline</h2>")])
    assert re.search(
        r"status processing since .* stage clip lease live .* left locked by worker:1:a", shown
    )
    assert "attempts 1 / 3" in shown
    assert "last failure" not in shown
    buttons, story = page.index('value="cancel_jobs"'), page.index('class="jr-story"')
    assert state < buttons < story < page.index('name="stage"') < page.index("jr-lease")
    lease.fail("OutOfMemory", "no room", retry=False)
    page = text(html(superuser, page_of(lease.job)))
    assert re.search(r"status failed since \d+ ms stage clip attempts 1 / 3 last failure Out", page)


def add_event(job: Job, data: object) -> None:
    execute(
        "INSERT INTO job_events (job_id, data) VALUES (%s, %s::jsonb)",
        str(job.pk),
        json.dumps(data),
    )


def test_only_the_latest_hundred_are_shown_with_a_link_to_the_rest(superuser: Client) -> None:
    job = make_job()
    execute(
        "INSERT INTO job_events (job_id, data)"
        " SELECT %s, jsonb_build_object('type', 'custom:' || n, 'table', 'jobs')"
        " FROM generate_series(1, 101) AS n ORDER BY n",
        str(job.pk),
    )
    page = html(superuser, page_of(job))
    shown = entries(page)
    assert len(shown) == 100
    assert " custom:2 " in shown[0]
    assert " + " in shown[0]
    assert " custom:101 " in shown[-1]
    link = re.search(r'<a href="([^"]*)">All events of this job', page)
    assert link is not None
    rest = superuser.get(link[1].replace("&amp;", "&"))
    assert rest.context["cl"].result_count == 101


def test_who_may_not_view_events_gets_no_link_to_them(staff: Callable[..., Client]) -> None:
    job = make_job()
    for _ in range(101):
        add_event(job, {"type": "custom:x", "table": "jobs"})
    page = text(html(staff("media.view_job"), page_of(job)))
    assert "Earlier events are left out." in page
    assert "All events of this job" not in page


def test_events_of_another_table_with_the_same_id_are_left_out(superuser: Client) -> None:
    job = make_job()
    other = AsrJob.objects.create(id=job.pk)
    control.cancel(AsrJob, [other.pk], by="ada")
    assert entries(html(superuser, page_of(job))) == ["No event yet."]
    assert len(entries(html(superuser, page_of(other)))) == 1


def test_an_event_from_before_that_names_no_table_is_shown_and_marked(superuser: Client) -> None:
    job = make_job()
    add_event(job, {"note": "moved"})
    (entry,) = entries(html(superuser, page_of(job)))
    assert "(no type) (the event names no table)" in entry
    assert '"note": "moved"' in entry


@pytest.mark.parametrize(
    "data",
    [
        [],
        "text",
        7,
        None,
        {"type": None, "details": []},
        {"type": 5, "details": "x"},
        {"type": "job:finished", "details": {"attempt": {"a": 1}, "duration_ms": "soon"}},
        {"type": "job:finished", "details": {"duration_ms": 1e308, "overdue_ms": True}},
        {"type": "reaper:requeued", "details": {"next_earliest_run_at": "2026-02-31T00:00:00Z"}},
        {"type": "reaper:requeued", "details": {"next_earliest_run_at": 5, "reaper": ["x"]}},
    ],
)
def test_whatever_a_foreign_writer_puts_into_an_event_is_shown_as_text(
    superuser: Client, data: object
) -> None:
    job = make_job()
    add_event(job, data)
    assert len(entries(html(superuser, page_of(job)))) == 1
    assert html(superuser, "/admin/jobreaper/jobevent/")


def test_an_event_of_megabytes_is_cut_in_the_timeline(superuser: Client) -> None:
    job = make_job()
    huge = {"fail_reason": "x" * 2_000_000}
    add_event(job, {"type": "job:failed", "table": "jobs", "details": huge})
    assert len(html(superuser, page_of(job))) < 60_000


def test_every_event_type_has_a_sentence(superuser: Client) -> None:
    job = make_job()
    for event_type in EventType:
        add_event(job, {"type": event_type.value, "table": "jobs"})
    sentences = re.findall(r'jr-what"><strong>(.*?)</strong>', html(superuser, page_of(job)))
    assert len(sentences) == len(EventType)
    assert not set(sentences) & set(EventType)


def test_hostile_text_is_escaped_wherever_it_is_shown(superuser: Client) -> None:
    lease = claimed(worker=SCRIPT, stage=SCRIPT, payload={SCRIPT: SCRIPT})
    pages = [list_of(Job), page_of(lease.job), f"{list_of(Job)}?worker={SCRIPT}"]
    pages += [page_of(lease.job, "delete"), page_of(lease.job, "history")]
    assert all(SCRIPT not in html(superuser, page) for page in pages)
    for action in ("requeue_jobs", "delete_selected"):
        posted = {"action": action, "_selected_action": lease.pk, "reason": SCRIPT}
        assert SCRIPT not in superuser.post(list_of(Job), posted).content.decode()
    lease.fail(SCRIPT, SCRIPT, retry=False)
    control.requeue(Job, [lease.pk], by=SCRIPT, reason=SCRIPT)
    add_event(lease.job, {"type": SCRIPT, "table": SCRIPT, "details": {"by": SCRIPT}})
    add_event(lease.job, {SCRIPT: SCRIPT})
    events = list_of(JobEvent)
    pages += [events, f"{events}?table={SCRIPT}&type={SCRIPT}"]
    pages += [f"{events}{event.pk}/change/" for event in JobEvent.objects.all()]
    for address in pages:
        page = html(superuser, address)
        assert SCRIPT not in page, address
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html(superuser, page_of(lease.job))
