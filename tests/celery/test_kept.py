"""The connection of leased tasks, which Celery closes between them unless it was put by."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.fixups import django as fixups
from celery.signals import task_prerun
from django.db import connection, connections
from django.db.backends.signals import connection_created

from jobreaper import conf
from jobreaper.celery import kept
from jobreaper.db import prepared
from jobreaper.protocol.heartbeat import heart
from jobreaper.states import Status
from tests.celery.brokers import declare, deliver
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

Work = Callable[[Any, Any], object]


@pytest.fixture(autouse=True)
def nothing_open(transactional_db: None) -> Iterator[None]:
    connection.close()
    kept.close_idle()  # of other tests
    yield
    heart.stop()


@pytest.fixture
def run(one_app: Celery, jobs: Rows) -> Callable[[Work], Any]:
    """Run a job as a worker does that closes connections as Celery's Django fixup says."""

    def run_it(work: Work) -> Any:
        key = jobs.plant(stage="mail")
        deliver(declare(one_app, work), key)
        fixup: Any = fixups  # celery-types does not declare what is in it
        fixup.DjangoWorkerFixup(one_app).close_database()
        return key

    return run_it


@contextmanager
def opened() -> Iterator[list[int]]:
    """Collect the sessions that are opened in the block, without those of heartbeats."""
    pids: list[int] = []

    def note(connection: Any, **kwargs: Any) -> None:
        if not getattr(connection, "jobreaper_heartbeat", False):
            pids.append(connection.connection.info.backend_pid)

    connection_created.connect(note)
    try:
        yield pids
    finally:
        connection_created.disconnect(note)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def nothing(job: Any, lease: Any) -> None: ...


def query(job: Any, lease: Any) -> None:
    execute("SELECT 1")


def query_in_the_driver(job: Any, lease: Any) -> None:
    connection.connection.execute("SELECT 1")


def finish(job: Any, lease: Any) -> None:
    lease.finish()


def move(job: Any, lease: Any) -> None:
    execute("SET search_path = pg_catalog, public")


def change_role(job: Any, lease: Any) -> None:
    execute("SET ROLE pg_monitor")


def begin(job: Any, lease: Any) -> None:
    execute("BEGIN")


def close(job: Any, lease: Any) -> None:
    connection.close()


@pytest.mark.parametrize(
    ("work", "max_age", "is_kept"),
    [
        (nothing, 0, True),
        (nothing, 60, True),
        (nothing, None, True),
        # A function finds a session as a new one is.
        (query, 0, False),
        (query_in_the_driver, 0, False),
        (move, 0, False),
        # Unless Django is told to keep it, and it is where it was.
        (query, 60, True),
        (finish, None, True),
        (move, None, False),
        (change_role, None, False),
        (begin, 0, False),
        (close, 0, False),
    ],
)
def test_a_connection_is_kept_as_conn_max_age_says(
    work: Work,
    max_age: int | None,
    is_kept: bool,
    run: Callable[[Work], Any],
    jobs: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", max_age)
    run(work)
    assert connection.connection is None, "Celery sees nothing that it could close"
    with opened() as sessions:
        key = run(nothing)
    assert (not sessions) == is_kept
    assert jobs.row(key)["status"] == Status.SUCCESS


def test_a_kept_connection_that_was_cut_costs_no_job(
    run: Callable[[Work], Any], jobs: Rows, sql: Sql
) -> None:
    with opened() as sessions:
        run(nothing)
    sql("SELECT pg_terminate_backend(%s, 5000)", sessions[0])
    key = run(nothing)
    assert (jobs.row(key)["status"], jobs.row(key)["attempt_count"]) == (Status.SUCCESS, 1)


def test_a_task_waits_for_the_server_twice_and_has_nothing_planned(
    run: Callable[[Work], Any], jobs: Rows
) -> None:
    for _ in range(prepared.THRESHOLD + 2):
        run(nothing)
    with said_on_the_kept_session() as said:
        key = run(nothing)
    assert jobs.row(key)["status"] == Status.SUCCESS
    assert said == {"Bind": 2, "Execute": 2, "Sync": 2, "ReadyForQuery": 2}


@contextmanager
def said_on_the_kept_session() -> Iterator[dict[str, int]]:
    """Count messages that libpq and the server send on the one session that is kept."""
    [idle] = kept._idle["default"]
    session = idle.connection.connection
    said: dict[str, int] = {}
    with tempfile.TemporaryFile("w+") as file:
        session.pgconn.trace(file.fileno())
        try:
            yield said
        finally:
            session.pgconn.untrace()
        file.seek(0)
        kinds = [line.split()[4] for line in file]
    sent = ("Query", "Parse", "Bind", "Execute", "Sync", "ReadyForQuery")
    said |= {kind: kinds.count(kind) for kind in sent if kind in kinds}


def test_a_session_that_has_lost_what_it_prepared_is_not_kept(
    run: Callable[[Work], Any], jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    for _ in range(prepared.THRESHOLD + 2):
        run(nothing)
    keys = [run(lambda job, lease: execute("DEALLOCATE ALL"))]
    with opened() as sessions:
        keys += [run(nothing) for _ in range(prepared.THRESHOLD + 2)]
    assert len(sessions) == 1
    assert {jobs.row(key)["status"] for key in keys} == {Status.SUCCESS}
    with said_on_the_kept_session() as said:
        run(nothing)
    assert "Parse" not in said


def test_a_connection_that_no_task_wants_is_closed(
    run: Callable[[Work], Any], sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEAT_SEC", "0.1")
    monkeypatch.setattr(kept, "IDLE_SEC", 0.1)
    conf.reset()
    with opened() as sessions:
        run(nothing)
    until(lambda: not sql("SELECT FROM pg_stat_activity WHERE pid = %s", sessions[0]))


@pytest.fixture
def opened_before() -> Iterator[Callable[[], object]]:
    """Open a connection before a task begins, after Celery has closed those that are open."""

    def open_it(**kwargs: Any) -> None:
        connection.ensure_connection()

    yield lambda: task_prerun.connect(open_it)
    task_prerun.disconnect(open_it)


@pytest.mark.parametrize(
    "whose", ["opened before", "a tenant's", "with rows of its own", "Celery's"]
)
def test_connections_of_others_are_left_to_celery(
    whose: str,
    run: Callable[[Work], Any],
    one_app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    opened_before: Callable[[], object],
) -> None:
    if whose == "opened before":
        opened_before()
    elif whose == "a tenant's":
        monkeypatch.setattr(type(connections["default"]), "set_tenant", 1, raising=False)
    elif whose == "with rows of its own":
        settings.JOBREAPER = {"SESSION_SETTINGS": ["app.tenant_id"]}
    else:
        one_app.conf.update(CELERY_DB_REUSE_MAX=1)
    run(nothing)
    assert not kept._idle.get("default")
