"""Children of a pool whose role may open no further connection."""

from collections.abc import Iterator

import pytest

from tests.celery.brokers import broker_url
from tests.celery.workers import Worker, await_status, beats, celery_workers, ready, running
from tests.limited_role import ROLE, SESSIONS, Limit, limited_role
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture
def limit(sql: Sql) -> Iterator[Limit]:
    with limited_role(sql) as set_limit:
        yield set_limit


@pytest.fixture
def worker(limit: Limit, database_url: str) -> Iterator[Worker]:
    with celery_workers(f"{database_url}&user={ROLE}", broker_url("redis")) as start:
        worker = start("--concurrency", "1", "--pool", "prefork")
        ready(worker)
        yield worker


def test_a_child_renews_its_lease_over_the_connection_of_its_claim(
    worker: Worker, limit: Limit, media: Rows, sql: Sql
) -> None:
    # The main process watches over the others.
    until(lambda: len(sql(SESSIONS, ROLE)) == 1)
    limit(2)
    key = worker.send(media, "wait_connected")
    running(media, key)
    for _ in range(3):
        beats(media, key)
    assert len(sql(SESSIONS, ROLE)) == 2
    assert "heartbeats have no connection to default" in worker.log
    worker.let_go(key)
    await_status(media, key, "success")
