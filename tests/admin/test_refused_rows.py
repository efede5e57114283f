"""Rows that cannot be written: listed with their errors, and tried again now by those who may."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from django.utils.timezone import now

from jobreaper import reap
from jobreaper.admin import RefusedRowAdmin
from jobreaper.models import RefusedRow
from project.media.models import Job
from tests.admin.conftest import execute, make_job
from tests.admin.pages import html, list_of, messages, page_of, text

pytestmark = pytest.mark.django_db

ROWS = list_of(RefusedRow)


def refuse(key: object = 7, **fields: Any) -> RefusedRow:
    given = {"table": "jobs", "verb": "reap", "error": "violates constraint <paid>", "tries": 3}
    next_try_at = now() + timedelta(minutes=30)
    return RefusedRow.objects.create(
        key=str(key), **{**given, "next_try_at": next_try_at, **fields}
    )


def try_again(client: Client, *rows: RefusedRow) -> Any:
    chosen = [row.pk for row in rows]
    return client.post(ROWS, {"action": "try_again", "_selected_action": chosen}, follow=True)


def test_the_list_shows_which_rows_since_when_and_why(superuser: Client) -> None:
    job = make_job()
    row = refuse(job.pk)
    page = html(superuser, ROWS)
    assert f'<a href="{page_of(job)}">{job.pk}</a>' in page
    assert "violates constraint <paid>" in text(page)
    for shown in (page, html(superuser, page_of(row))):
        assert f"{row.since:%Y-%m-%d %H:%M:%S}" in shown
        assert f"{row.next_try_at:%Y-%m-%d %H:%M:%S}" in shown


def test_a_row_that_is_tried_again_now_is_reaped_by_the_next_pass(superuser: Client) -> None:
    job = make_job(status="processing")
    execute("UPDATE jobs SET lease_expires_at = now() - interval '1 minute'")
    row, other = refuse(job.pk), refuse(job.pk + 1)
    assert reap([Job], hold=False).requeued == 0
    said = messages(try_again(superuser, row))
    assert said == "The next pass tries 1 row again."
    # In the time of the database, which stands still in the test's own transaction.
    assert reap([Job], hold=False).requeued_ids["jobs"] == [job.pk]
    assert list(RefusedRow.objects.all()) == [other]


def test_only_those_who_may_change_them_have_them_tried_again(
    staff: Callable[..., Client],
) -> None:
    row = refuse()
    client = staff("jobreaper.view_refusedrow")
    assert "Try again now" not in html(client, ROWS)
    try_again(client, row)
    row.refresh_from_db()
    assert row.next_try_at > now()


def test_who_may_change_them_may_have_them_tried_again(staff: Callable[..., Client]) -> None:
    row = refuse()
    client = staff("jobreaper.change_refusedrow")
    try_again(client, row)
    row.refresh_from_db()
    assert row.next_try_at <= now()


def test_they_are_for_those_who_may_view_them(staff: Callable[..., Client]) -> None:
    assert staff("media.view_job").get(ROWS).status_code == 403


def test_an_admin_may_refuse_single_rows(rf: Any) -> None:
    mine, others = refuse(1), refuse(2, table="asr_jobs")

    class Own(RefusedRowAdmin):
        def has_try_again_permission(self, request: HttpRequest, obj: Any = None) -> bool:
            return obj is None or obj.table == "jobs"

        def message_user(self, *args: Any, **kwargs: Any) -> None:
            said.append(args[1])

    said: list[str] = []
    request = rf.post(ROWS)
    request.user = User.objects.create_superuser("eve")
    Own(RefusedRow, admin.site).try_again(request, RefusedRow.objects.all())
    mine.refresh_from_db()
    others.refresh_from_db()
    assert mine.next_try_at <= now() < others.next_try_at
    assert said[1].startswith("You may not")
