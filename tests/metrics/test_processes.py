"""The counters agree with the events whichever process acts, whichever is scraped, and whatever is
restarted meanwhile.
"""

import itertools
import json
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from psycopg.rows import dict_row

from jobreaper import reap
from jobreaper.celery.schedule import REAP
from project.celery import app
from project.embedded import Postgres
from tests.metrics.page import Page, Sql, events, increase
from tests.metrics.promtool import needs_promtool, promtool
from tests.metrics.test_agreement import FAILED, FIVE, REQUEUED, SEVEN, plant_seven_and_five
from tests.processes.children import Child
from tests.rows import Rows
from tests.waiting import until

pytest.importorskip("django_prometheus")

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a Python process on a database; all are gone when the test ends."""
    children: list[Child] = []
    numbers = itertools.count()

    def run(url: str, *arguments: str) -> Child:
        environment = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        children.append(Child(arguments, environment, tmp_path / f"child-{next(numbers)}.log"))
        return children[-1]

    yield run
    for child in children:
        child.end()


class Web:
    """A web server."""

    def __init__(self, start: Start, url: str) -> None:
        self.process = start(url, "-m", "tests.metrics.web")
        self.port = int(self.process.answer(60))

    def scrape(self) -> Page:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as response:
            assert response.status == 200
            return Page(response.read().decode())


def test_a_pass_in_a_celery_worker_is_seen_in_the_web_process(
    start: Start, database_url: str, jobs: Rows, asr_jobs: Rows, sql: Sql
) -> None:
    queue = f"metrics-{uuid.uuid4().hex}"
    web = Web(start, database_url)
    worker = start(
        database_url,
        *("-m", "celery", "-A", "project", "worker", "--queues", queue),
        *("--hostname", f"{queue}@%h", "--concurrency", "1", "--loglevel", "INFO"),
    )
    until(lambda: "ready." in worker.log, timeout_sec=60)
    plant_seven_and_five(jobs, asr_jobs)
    before = web.scrape()
    app.send_task(REAP, queue=queue)
    until(lambda: sql("SELECT id FROM jobreaper_passes WHERE trigger = 'beat'"), timeout_sec=60)

    # The page may be five seconds old.
    until(lambda: increase(before, web.scrape(), "reaper_requeues_total"))
    after = web.scrape()
    assert increase(before, after, "reaper_requeues_total") == SEVEN == events(sql, REQUEUED)
    assert increase(before, after, "reaper_failures_total") == FIVE == events(sql, FAILED)
    count = "reaper_scan_duration_seconds_count"
    assert after.value(count, table="jobs") - before.value(count, table="jobs") == 1
    with app.connection_for_write() as connection:
        connection.SimpleQueue(queue).queue.delete()


def test_a_database_that_accepts_and_never_answers_keeps_no_page_from_coming(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        web = Web(start, f"postgresql://nobody@127.0.0.1:{port}/none")
        for _ in range(2):
            page = web.scrape()
            assert set(page.samples) == {"jobreaper_up"}
            assert page.value("jobreaper_up") == 0
            assert "python_info" in page.text


@needs_promtool
def test_promtool_accepts_the_page_of_the_web_process(
    start: Start, database_url: str, jobs: Rows
) -> None:
    jobs.plant_expired(stage="clip")
    reap()
    page = Web(start, database_url).scrape()
    assert page.by("stage", of="reaper_requeues_total") == {"clip": 1}
    checked = promtool("check", "metrics", text=page.text)
    assert (checked.returncode, checked.stderr) == (0, "")


def client_of(server: Postgres) -> Sql:
    def run(statement: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(server.url, autocommit=True, row_factory=dict_row) as client:
            cursor = client.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_after_a_restart_of_everything_the_counters_are_what_they_were(
    how: str, server: Postgres, start: Start
) -> None:
    assert start(server.url, "manage.py", "migrate", "-v0").process.wait(120) == 0
    sql = client_of(server)

    def run_a_pass() -> dict[str, Any]:
        command = start(server.url, "manage.py", "reap", "--no-hold", "--format", "json")
        result: dict[str, Any] = json.loads(command.answer(60))
        assert command.process.wait(60) == 0
        return result

    plant_seven_and_five(Rows(sql, "jobs"), Rows(sql, "asr_jobs"))
    result = run_a_pass()
    assert (result["requeued"], result["failed"]) == (7, 5)
    web = Web(start, server.url)
    before = web.scrape()
    assert before.value("jobreaper_up") == 1

    server.stop(how)

    def goes_down() -> bool:
        page = web.scrape()
        if page.value("jobreaper_up"):
            return False
        assert set(page.samples) == {"jobreaper_up"}, "something stale is told"
        return True

    until(goes_down)
    web.process.kill()
    server.start()

    after = Web(start, server.url).scrape()
    for name in before.types:
        if before.types[name] in ("counter", "summary"):
            for suffix in ("_total", "_count", "_sum"):
                assert after.samples.get(name + suffix) == before.samples.get(name + suffix)
    assert after.by("table", "stage", of="reaper_requeues_total") == SEVEN
    assert after.by("table", "stage", of="reaper_failures_total") == FIVE

    # And they go on from there.
    Rows(sql, "jobs").plant_expired(stage="clip")
    assert run_a_pass()["requeued"] == 1
    page = Web(start, server.url).scrape()
    assert increase(after, page, "reaper_requeues_total") == {("jobs", "clip"): 1}
    assert page.by("table", "stage", of="reaper_requeues_total") == events(sql, REQUEUED)
