"""One trace over real processes: a request, a broker, a worker that dies and one that finishes."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobreaper.states import EventType
from project.celery import app
from tests.processes.children import Child
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

MODULE = "tests.tracing.traced"

Start = Callable[..., Child]


@pytest.fixture
def queue() -> Iterator[str]:
    """A queue that no other process listens to."""
    name = f"traced-{uuid.uuid4().hex}"
    yield name
    with app.connection_for_write() as connection:
        connection.SimpleQueue(name).queue.delete()


@pytest.fixture
def start(database_url: str, tmp_path: Path, queue: str) -> Iterator[Start]:
    """Start a traced process."""
    children: list[Child] = []

    def run(*arguments: str) -> Child:
        environment = {
            "DATABASE_URL": database_url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TRACED_QUEUE": queue,
            "TRACED_SPANS": str(tmp_path / "spans"),
        }
        log = tmp_path / f"child-{len(children)}.log"
        children.append(Child(["-m", *arguments], environment, log))
        return children[-1]

    yield run
    for child in children:
        child.end()


def test_a_trace_goes_from_the_request_through_the_attempt_that_dies_to_the_one_that_finishes(
    start: Start, queue: str, sql: Callable[..., Any], tmp_path: Path
) -> None:
    worker = start(
        *("celery", "-A", MODULE, "worker", "--hostname", f"{queue}@%h"),
        *("--concurrency", "1", "--loglevel", "INFO"),
    )
    until(lambda: "ready." in worker.log, timeout_sec=60)
    jobs = Rows(sql, "jobs")
    pk = int(start(MODULE).answer())
    until(lambda: jobs.row(pk)["status"] == "success", timeout_sec=60)
    assert jobs.event_types(pk) == [
        EventType.JOB_TRACED,
        EventType.JOB_WORKER_LOST,
        EventType.JOB_TRACED,
        EventType.JOB_FINISHED,
    ]

    def spans(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "spans").read_text().splitlines()
        return [span for line in lines if (span := json.loads(line))["name"] == name]

    until(lambda: spans("jobreaper.run"))
    [request] = spans("request")
    [run] = spans("jobreaper.run")
    # The first attempt was killed before its span could be sent; its context is on record.
    traceparent = jobs.events(pk)[0]["details"]["traceparent"]
    _, trace_id, span_id, _ = traceparent.split("-")
    assert f"0x{trace_id}" == request["context"]["trace_id"]
    assert run["attributes"]["attempt"] == 2
    assert run["attributes"]["outcome"] == "finished"
    [link] = run["links"]
    assert (link["context"]["trace_id"], link["context"]["span_id"]) == (
        f"0x{trace_id}",
        f"0x{span_id}",
    )
