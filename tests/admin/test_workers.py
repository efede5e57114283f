"""The list of workers: how each stands, and the jobs that it holds, for those who may see them."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from psycopg.sql import SQL, Literal

from jobreaper.admin import LeasedJobAdmin, WorkerAdmin
from jobreaper.models import Worker
from jobreaper.sql import compose
from project.media.models import AsrJob, Job
from tests.admin.conftest import claimed, execute
from tests.admin.own import shown_in_site
from tests.admin.pages import html, list_of, listed, page_of, text

pytestmark = pytest.mark.django_db

WORKERS = list_of(Worker)

# As a page says it, however slow this machine is.
LONG = timedelta(hours=5, minutes=10, seconds=30)


def worker(key: str = "h:1:a", **fields: Any) -> Worker:
    given = {"kind": "work", "host": "h", "pid": 1, "version": "0.1", **fields}
    return Worker.objects.create(worker=key, **given)


def line(client: Client, key: str, address: str = WORKERS) -> str:
    """What is said of one worker."""
    [row] = [row for row in re.findall(r"(?s)<tr>.*?</tr>", html(client, address)) if key in row]
    return text(row)


def links(page: str) -> list[tuple[str, str]]:
    """Where a worker's jobs are."""
    return [
        (unescape(address), said)
        for address, said in re.findall(r'<a href="([^"]*worker=[^"]*)">([^<]*)</a>', page)
    ]


@pytest.fixture
def hold(second_connection: psycopg.Connection[Any]) -> Callable[[str], None]:
    """Hold a worker's lock, as its own sessions do."""

    def run(key: str) -> None:
        lock = compose("fragments/presence_key", {"worker": Literal(key)})
        second_connection.execute(SQL("SELECT pg_advisory_lock_shared({})").format(lock))

    return run


def test_each_says_how_it_stands_and_since_when(
    superuser: Client, hold: Callable[[str], None]
) -> None:
    hold("here:1:a")
    hold("frozen:1:a")
    worker("here:1:a", runs="<mail>", started_at=now() - LONG)
    worker("silent:1:a", silent_since=now() - LONG)
    worker("frozen:1:a", seen_at=now() - LONG)
    worker("gone:1:a", gone_at=now() - LONG, taken=2, kind="celery")
    worker("pooled:1:a", is_direct=False, leases=3)
    assert "here - 0 work <mail> " in line(superuser, "here:1:a")
    assert "silent for 5 h 10 min - 0 work" in line(superuser, "silent:1:a")
    assert "silent for 5 h 10 min - 0 work" in line(superuser, "frozen:1:a")
    assert "gone 5 h 10 min ago, 2 jobs taken back - 0 celery" in line(superuser, "gone:1:a")
    pooled = line(superuser, "pooled:1:a")
    assert "here no presence, through a pooler: its leases decide - 3 work" in pooled
    assert pooled.endswith("ago 0.1")
    page = text(html(superuser, page_of(Worker.objects.get(pk="gone:1:a"))))
    assert "gone 5 h 10 min ago, 2 jobs taken back" in page
    assert "<mail>" not in html(superuser, WORKERS)


def test_they_are_filtered_by_state_and_kind_and_found_by_host(superuser: Client) -> None:
    for key, kind in (("b:1:x", "work"), ("a:1:x", "work"), ("a%:1:x", "celery")):
        worker(key, kind=kind)
    worker("a:2:x", gone_at=now())
    assert listed(superuser, f"{WORKERS}?state=silent&kind=work") == ["a:1:x", "b:1:x"]
    assert listed(superuser, f"{WORKERS}?state=gone") == ["a:2:x"]
    assert listed(superuser, f"{WORKERS}?q=a:") == ["a:1:x", "a:2:x"]
    assert listed(superuser, f"{WORKERS}?q=a%25") == ["a%:1:x"]


def test_a_worker_leads_to_the_jobs_that_it_holds_in_each_table(superuser: Client) -> None:
    name = "h:1:&a"
    worker(name)
    mine = {claimed(name).pk, claimed(name).pk}
    claimed("h:1:other")
    AsrJob.objects.create(status="processing", locked_by=name, stage="asr")
    Job.objects.create(status="failed", locked_by=name)
    for address in (WORKERS, page_of(Worker.objects.get())):
        found = links(html(superuser, address))
        assert [said for _, said in found] == ["jobs: 2", "asr_jobs: 1"]
        assert set(listed(superuser, found[0][0])) == mine
        assert len(listed(superuser, found[1][0])) == 1


def test_only_jobs_that_a_user_may_see_are_told_of(staff: Callable[..., Client]) -> None:
    client = staff("jobreaper.view_worker", "media.view_asrjob")
    worker("h:1:a")
    claimed("h:1:a")
    assert links(html(client, WORKERS)) == []
    AsrJob.objects.create(status="processing", locked_by="h:1:a", stage="asr")
    assert [said for _, said in links(html(client, WORKERS))] == ["asr_jobs: 1"]


class OwnTenant(LeasedJobAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(stage="clip")


class WithoutFilter(LeasedJobAdmin):
    list_filter = ()


@pytest.mark.parametrize(
    ("made_by", "said"), [(OwnTenant, ["jobs: 1"]), (WithoutFilter, []), (None, [])]
)
def test_a_tables_own_admin_decides_what_is_told_of_it(
    superuser: Client, made_by: type[Any] | None, said: list[str]
) -> None:
    worker("h:1:a")
    claimed("h:1:a")
    claimed("h:1:a", stage="asr")
    shown: dict[type[Any], type[Any]] = {Worker: WorkerAdmin}
    with shown_in_site({**shown, Job: made_by} if made_by else shown):
        found = links(html(superuser, WORKERS))
        assert [each for _, each in found] == said
        for address, _ in found:
            assert len(listed(superuser, address)) == 1


def test_the_list_is_for_those_who_may_view_it_and_nobody_changes_it(
    superuser: Client, staff: Callable[..., Client]
) -> None:
    row = worker()
    assert Client().get(WORKERS).status_code == 302
    assert superuser.post(page_of(row), {"host": "x"}).status_code == 403
    assert superuser.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
    assert superuser.post(f"{WORKERS}add/", {"worker": "x"}).status_code == 403
    assert 'name="_save"' not in html(superuser, page_of(row))
    assert Worker.objects.values().get()["host"] == "h"
    execute("DELETE FROM auth_user")
    assert staff("jobreaper.view_job").get(WORKERS).status_code == 403


def test_it_says_that_nobody_is_watched(superuser: Client) -> None:
    row = worker()
    said = "presence is switched off: PRESENCE_GRACE_SEC is 0"
    assert said not in html(superuser, WORKERS)
    with override_settings(JOBREAPER={"PRESENCE_GRACE_SEC": 0}):
        assert said in html(superuser, WORKERS)
        assert said in html(superuser, page_of(row))


def test_many_workers_cost_as_many_statements_as_few(superuser: Client) -> None:
    execute(
        "INSERT INTO jobreaper_workers (worker, kind, host, pid, version)"
        " SELECT 'h:' || n, 'work', 'h', n, '0' FROM generate_series(1, 10100) AS n"
    )
    with CaptureQueriesContext(connection) as captured:
        page = html(superuser, f"{WORKERS}?state=silent")
    assert "more than 10,000 workers" in text(page)
    sent = [query["sql"] for query in captured]
    assert len([each for each in sent if "jobreaper_workers" in each]) <= 3
    assert len([each for each in sent if "COUNT(" in each and "locked_by" in each]) == 3
    assert len(captured) <= 10


def test_values_that_nobody_can_read_are_shown_as_they_are(superuser: Client) -> None:
    for state in ("silent_since", "gone_at"):
        worker(state)
        execute(f"UPDATE jobreaper_workers SET {state} = 'infinity' WHERE worker = '{state}'")
        assert "infinity" in line(superuser, f">{state}<")
