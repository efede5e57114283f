"""Somebody who may view everything, and nothing else, tries everything."""

from collections.abc import Callable

import pytest
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Permission
from django.core import serializers
from django.test import Client

import jobreaper
from jobreaper.models import Job as QueueJob
from jobreaper.models import JobEvent, Pause, ReaperPass, RefusedRow, Schedule, Worker
from tests.admin.pages import list_of, page_of

pytestmark = pytest.mark.django_db

NOW = "2026-01-01T00:00:00Z"
MODELS = (QueueJob, JobEvent, Pause, ReaperPass, RefusedRow, Schedule, Worker)


def test_a_viewer_of_everything_changes_nothing(staff: Callable[..., Client]) -> None:
    rows = [
        QueueJob.objects.create(type="mail", status="failed"),
        JobEvent.objects.create(job_id="1", data={"type": "job:finished"}),
        ReaperPass.objects.create(reaper="r"),
        RefusedRow.objects.create(table="jobs", verb="reap", key="1", error="e", next_try_at=NOW),
        Schedule.objects.create(name="nightly", definition={}),
        Worker.objects.create(worker="w:1:a", kind="work", host="w", pid=1, version="0"),
    ]
    jobreaper.pause("mail")
    rows.append(Pause.objects.get())
    before = everything()
    views = Permission.objects.filter(
        content_type__app_label__in=("jobreaper", "media"), codename__startswith="view_"
    )
    client = staff(*(f"{each.content_type.app_label}.{each.codename}" for each in views))
    for row in rows:
        own = admin.site.get_model_admin(type(row))
        assert client.get(list_of(type(row))).status_code == 200
        assert client.get(page_of(row)).status_code == 200
        for action in ("delete_selected", *dict.fromkeys(map(name_of, own.actions or ()))):
            posted = {"action": action, ACTION_CHECKBOX_NAME: row.pk, "post": "yes"}
            client.post(list_of(type(row)), {**posted, "confirmed": "yes"})
        assert client.post(page_of(row), {"_save": "yes"}).status_code == 403
        assert client.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
        add = list_of(type(row)) + "add/"
        assert client.post(add, {"table": "jobs", "name": "clip", "type": "x"}).status_code == 403
    assert everything() == before


def name_of(action: object) -> str:
    return str(getattr(action, "__name__", action))


def everything() -> list[str]:
    return [serializers.serialize("json", model._base_manager.order_by("pk")) for model in MODELS]
