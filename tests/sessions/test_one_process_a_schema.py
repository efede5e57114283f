"""A process for each tenant's schema: what its reaper and its worker look at."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from django.test import Client
from django.urls import reverse

from jobreaper import job_handler, prune, reap
from jobreaper.models import Job
from jobreaper.queue import handlers
from jobreaper.queue.worker import Worker
from project.media.models import Job as MediaJob
from tests.rows import Rows, Sql, ago
from tests.sessions.conftest import TENANTS, reconnected, schema

pytestmark = pytest.mark.usefixtures("transactional_db")

Enter = Callable[[str], None]


@pytest.fixture(params=["by a package for tenants", "by the connection's options"])
def enter(request: pytest.FixtureRequest, tenants: None) -> Iterator[Enter]:
    """Let this process be one of a tenant."""
    with ExitStack() as stack:

        def in_package(name: str) -> None:
            stack.enter_context(schema(name))

        def in_options(name: str) -> None:
            options = {
                **connections.settings["default"]["OPTIONS"],
                "options": f"-c search_path={name},public",
            }
            engine = "django.db.backends.postgresql"
            stack.enter_context(reconnected(ENGINE=engine, OPTIONS=options))

        yield in_package if "package" in request.param else in_options


def test_a_reaper_of_a_tenant_reaps_in_its_schema(enter: Enter, sql: Sql) -> None:
    lost = {"status": "processing", "locked_by": "w", "lease_expires_at": ago(10)}
    for name in (*TENANTS, "public"):
        Rows(sql, f"{name}.jobs").plant(id=7, **lost)
    enter("tenant_b")
    assert reap([MediaJob]).requeued_ids["jobs"] == [7]
    status = {name: Rows(sql, f"{name}.jobs").row(7)["status"] for name in (*TENANTS, "public")}
    assert status == {"tenant_a": "processing", "tenant_b": "queued", "public": "processing"}


def test_one_task_goes_through_the_schemas(tenants: None, sql: Sql) -> None:
    lost = {"status": "processing", "locked_by": "w", "lease_expires_at": ago(10)}
    old = {"type": "mail", "status": "success", "finished_at": ago(400 * 86_400)}
    for name in TENANTS:
        Rows(sql, f"{name}.jobs").plant(id=7, **lost)
        Rows(sql, f"{name}.jobreaper_jobs").plant(id=uuid4(), **old)
    for name in TENANTS:
        with schema(name):
            assert reap([MediaJob]).requeued_ids["jobs"] == [7]
            assert prune().deleted["jobreaper_jobs"] == 1
            assert reap([MediaJob]).requeued == 0
    assert [Rows(sql, f"{name}.jobs").row(7)["status"] for name in TENANTS] == ["queued"] * 2


def test_the_admin_shows_and_changes_the_schema_of_its_request(
    tenants: None, sql: Sql, admin_client: Client
) -> None:
    for name in TENANTS:
        Rows(sql, f"{name}.jobs").plant(id=7, status="failed")
    url = reverse("admin:media_job_changelist")
    chosen = {"action": "requeue_jobs", "_selected_action": ["7"], "confirmed": "yes"}
    with schema("tenant_b"):
        assert admin_client.get(url).context["cl"].result_count == 1
        assert admin_client.post(url, chosen).status_code == 302
    found = {name: Rows(sql, f"{name}.jobs").row(7)["status"] for name in TENANTS}
    assert found == {"tenant_a": "failed", "tenant_b": "queued"}
    assert admin_client.get(url).context["cl"].result_count == 0


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """The schemas in which a handler finds itself."""
    found: list[str] = []

    def look(job: Any, lease: Any) -> None:
        found.append(_where())
        with transaction.atomic():
            found.append(_where())
        assert Job.objects.get(pk=job.pk).status == "processing"
        # Over a cursor of the server's, in a transaction and without one.
        assert [each.pk for each in Job.objects.iterator()] == [job.pk]
        with transaction.atomic():
            assert [each.pk for each in Job.objects.iterator()] == [job.pk]
        # Its own move wins.
        found.append(_where("SET search_path = tenant_a"))
        connection.close()

    job_handler("look")(look)
    yield found
    del handlers._handlers["look"]


def _where(before: str = "") -> str:
    with connection.cursor() as cursor:
        if before:
            cursor.execute(before)
        cursor.execute("SELECT current_schema()")
        return str(cursor.fetchone()[0])


def test_a_handler_runs_where_its_job_was_found(enter: Enter, sql: Sql, seen: list[str]) -> None:
    places = {name: Rows(sql, f"{name}.jobreaper_jobs") for name in (*TENANTS, "public")}
    keys = {name: jobs.plant(id=uuid4(), type="look") for name, jobs in places.items()}
    enter("tenant_b")
    Worker(listen=False).run(once=True)
    found = {name: jobs.row(keys[name])["status"] for name, jobs in places.items()}
    assert found == {"tenant_a": "queued", "tenant_b": "success", "public": "queued"}
    assert seen == ["tenant_b", "tenant_b", "tenant_a"]
