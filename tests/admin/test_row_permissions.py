"""What an admin restricts with Django's hooks is restricted in every button, action and link."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from jobreaper.admin import LeasedJobAdmin, PauseAdmin
from jobreaper.models import JobEvent, Pause
from tests.admin.own import own_jobs, shown_in_site
from tests.admin.pages import html, listed, messages, text

pytestmark = pytest.mark.django_db

LIST = "/admin/documents/errand/"
ACTIONS = ["requeue_jobs", "fail_jobs", "cancel_jobs"]
WORDS = {"requeue_jobs": "requeued", "fail_jobs": "failed", "cancel_jobs": "cancelled"}


class ByRow(LeasedJobAdmin):
    """Jobs of the stage "mine" may be changed, all may be seen."""

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return obj is None or obj.stage == "mine"


class ByOneRow(LeasedJobAdmin):
    """The same, decided when the admin is made."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        vars(self)["has_change_permission"] = lambda request, obj=None: (
            obj is None or obj.stage == "mine"
        )


class OwnOnly(LeasedJobAdmin):
    """Only jobs of the stage "mine" are there."""

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(stage="mine")


class NoActions(LeasedJobAdmin):
    """Nothing may be done."""

    actions = None


class OneAction(LeasedJobAdmin):
    """Jobs may be cancelled."""

    def get_actions(self, request: Any, action_location: Any = None) -> Any:
        # Django 6.1 says for which page.
        location = {"action_location": action_location} if action_location else {}
        actions = super().get_actions(request, **location)
        return {name: actions[name] for name in actions if name == "cancel_jobs"}


@pytest.fixture(params=[ByRow, ByOneRow])
def errands(request: pytest.FixtureRequest, db: None) -> Iterator[Any]:
    with own_jobs(made_by=request.param) as model:
        yield model


def post(client: Client, action: str, *jobs: Any, **more: str) -> Any:
    data = {"action": action, "_selected_action": [job.pk for job in jobs], **more}
    return client.post(LIST, data, follow=True)


def jobs_of(model: Any, action: str) -> tuple[Any, Any]:
    """One that may be changed by an action and one that may not."""
    status = "failed" if action == "requeue_jobs" else "queued"
    return (
        model.objects.create(stage="mine", status=status),
        model.objects.create(stage="other", status=status),
    )


def statuses(*jobs: Any) -> list[str]:
    return [type(job).objects.get(pk=job.pk).status for job in jobs]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "way", [{}, {"from_job_page": "1"}, {"select_across": "1"}], ids=["ticked", "page", "all"]
)
def test_a_job_that_may_not_be_changed_is_not(
    superuser: Client, errands: Any, action: str, way: dict[str, str]
) -> None:
    mine, other = jobs_of(errands, action)
    before = other.status
    asked = text(post(superuser, action, other, mine, **way).content.decode())
    assert "you may not change them 1 left as they are" in asked
    said = messages(post(superuser, action, other, mine, confirmed="yes", **way))
    assert f"1 errand was {WORDS[action]}." in said
    assert f"1 was not {WORDS[action]}: you may not change it." in said
    assert statuses(mine, other) == [{"fail_jobs": "failed"}.get(action, statuses(mine)[0]), before]
    assert statuses(mine) != [before]
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(mine.pk)]
    said = messages(post(superuser, action, other, confirmed="yes", **way))
    assert f"1 was not {WORDS[action]}" in said
    assert statuses(other) == [before]


def test_the_page_of_such_a_job_has_no_button(superuser: Client, errands: Any) -> None:
    mine, other = jobs_of(errands, "cancel_jobs")
    assert "cancel_jobs" in html(superuser, f"{LIST}{mine.pk}/change/")
    page = html(superuser, f"{LIST}{other.pk}/change/")
    assert not [action for action in ACTIONS if action in page]
    assert 'name="_save"' not in page


def test_very_many_that_may_not_be_changed_end_in_time(
    superuser: Client, errands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobreaper.admin.verbs.BATCH", 2)
    monkeypatch.setattr("jobreaper.admin.verbs.ENOUGH_SEC", 0)
    jobs = [errands.objects.create(stage="other") for _ in range(5)]
    said = messages(post(superuser, "fail_jobs", *jobs, confirmed="yes"))
    assert "That took too long" in said
    assert {*statuses(*jobs)} == {"queued"}


def test_a_job_that_is_not_in_the_admins_queryset_is_neither_seen_nor_changed(
    superuser: Client,
) -> None:
    with own_jobs(made_by=OwnOnly) as errands:
        mine, other = jobs_of(errands, "cancel_jobs")
        assert listed(superuser, LIST) == [mine.pk]
        assert "stage=other" not in html(superuser, LIST)
        assert superuser.get(f"{LIST}{other.pk}/change/").status_code == 302
        for way in ({}, {"from_job_page": "1"}, {"select_across": "1"}):
            post(superuser, "cancel_jobs", other, confirmed="yes", **way)
        assert statuses(other) == ["queued"]
        assert not JobEvent.objects.filter(job_id=str(other.pk)).exists()


@pytest.mark.parametrize(("made_by", "left"), [(NoActions, set()), (OneAction, {"cancel_jobs"})])
def test_an_action_that_the_admin_has_taken_away_is_no_button_and_does_nothing(
    superuser: Client, made_by: Any, left: set[str]
) -> None:
    with own_jobs(made_by=made_by) as errands:
        job = errands.objects.create(stage="mine")
        page = html(superuser, f"{LIST}{job.pk}/change/")
        assert {action for action in ACTIONS if action in page} == left
        post(superuser, "fail_jobs", job, confirmed="yes")
        assert statuses(job) == ["queued"]


def test_a_pause_that_may_not_be_deleted_is_not_ended(superuser: Client) -> None:
    class ByName(PauseAdmin):
        def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
            return obj is None or obj.name == "mine"

    pauses = [Pause.objects.create(table="jobs", name=name) for name in ("mine", "theirs")]
    with shown_in_site({Pause: ByName}):
        chosen = {"action": "delete_selected", "_selected_action": [each.pk for each in pauses]}
        said = messages(superuser.post("/admin/jobreaper/pause/", chosen, follow=True))
    assert said == "1 was resumed. | You may not resume theirs of jobs."
    assert Pause.objects.get().name == "theirs"


def test_an_event_is_no_link_for_who_may_not_see_the_job(staff: Callable[..., Client]) -> None:
    event = JobEvent.objects.create(job_id="7", data={"table": "jobs"})
    client = staff("jobreaper.view_jobevent")
    for address in ("/admin/jobreaper/jobevent/", f"/admin/jobreaper/jobevent/{event.pk}/change/"):
        page = html(client, address)
        assert "/media/job/7/" not in page
        assert "7" in text(page)


@pytest.mark.parametrize("name", ["admin", "backoffice"])
def test_links_stay_in_the_site_that_shows_them(superuser: Client, name: str) -> None:
    with own_jobs(site=name) as errands:
        job = errands.objects.create(stage="mine")
        JobEvent.objects.create(job_id=str(job.pk), data={"table": "errands"})
        JobEvent.objects.create(job_id="7", data={"table": "jobs"})
        page = html(superuser, "/admin/jobreaper/jobevent/")
        assert f'href="{LIST}{job.pk}/change/"' in page
        assert "/media/" not in page
        assert html(superuser, f"{LIST}{job.pk}/change/")
        done = post(superuser, "cancel_jobs", job, confirmed="yes", from_job_page="1")
        assert done.redirect_chain == [(f"{LIST}{job.pk}/change/", 302)]


def test_a_change_that_cannot_be_logged_is_done_and_that_is_said(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any) -> str:
        raise RuntimeError("no name")

    with own_jobs() as errands:
        job = errands.objects.create(stage="mine")
        with monkeypatch.context() as patch:
            patch.setattr(errands, "__str__", fails)
            answer = superuser.post(
                LIST, {"action": "cancel_jobs", "_selected_action": job.pk, "confirmed": "yes"}
            )
        assert answer.status_code == 302
        assert statuses(job) == ["cancelled"]
        assert "1 change is missing in the admin" in text(html(superuser, LIST))
    assert not LogEntry.objects.exists()
