"""The rights that docs/queue.md names are enough, and none of them is too much."""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import ProgrammingError, connection
from django.test import Client, override_settings

from jobreaper import (
    LeaseLost,
    cancel,
    claim,
    enqueue,
    enqueue_many,
    job_handler,
    prune,
    reap,
    requeue,
)
from jobreaper.celery.dispatcher import dispatch
from jobreaper.http.views import UNSAID
from jobreaper.models import Job
from jobreaper.queue.worker import Worker
from tests.docs import markdown
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

# Roles belong to the server, which several processes of a test run share.
ROLE = f"rights_of_a_test_{os.getpid()}"


def first_code(row: list[str]) -> str:
    return markdown.code(row[0])[0]


ROWS = markdown.rows(markdown.section(markdown.page("queue"), "Rights"))
GRANTS = {
    first_code(row): [
        (right, table)
        for rights, tables in re.findall(r"([A-Z, ]+) on ((?:`\w+`(?:, )?)+)", row[1])
        for right in re.findall(r"[A-Z]+", rights)
        for table in markdown.code(tables)
    ]
    for row in ROWS
}


@pytest.fixture
def role(sql: Sql) -> Iterator[None]:
    sql(f"CREATE ROLE {ROLE}")
    sql(f"GRANT USAGE ON SCHEMA public TO {ROLE}")
    yield
    connection.close()
    sql(f"DROP OWNED BY {ROLE}")
    sql(f"DROP ROLE {ROLE}")


def take_role() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {ROLE}")


def enqueues(jobs: Rows) -> None:
    take_role()
    enqueue("idle")
    enqueue_many([{}] * 2, type="idle", dedupe="skip")
    enqueue("idle", dedupe="replace")


def works(jobs: Rows) -> None:
    enqueue_many([{}] * 3, type="idle")
    job_handler("raises")(lambda job, lease: 1 / 0)
    enqueue("raises", max_attempts=1)
    taken = enqueue("taken")
    job_handler("taken")(lambda job, lease: jobs.set(taken.pk, lease_epoch=99))
    take_role()
    with override_settings(JOBREAPER={"STAGES": {"idle": {"max_running": 2}}}):
        tally = Worker().run(once=True)
    assert (tally.succeeded, tally.failed, tally.lost) == (3, 1, 1)


def leases(jobs: Rows) -> None:
    pks = enqueue_many([{}] * 4, type="idle").ids
    take_role()
    for pk, verb in zip(pks, ["finish", "fail", "release", "lose"], strict=True):
        lease = claim(Job, pk)
        assert lease is not None
        lease.heartbeat()
        if verb == "lose":
            jobs.set(pk, lease_epoch=99)
            with pytest.raises(LeaseLost):
                lease.finish()
        else:
            lease.fail("E") if verb == "fail" else getattr(lease, verb)()


def reaps(jobs: Rows) -> None:
    for n in range(3):
        jobs.plant(type="idle", status="processing", attempt_count=n + 1, lease_expires_at=ago(60))
    take_role()
    result = reap([Job], hold=False)
    assert not result.all_errors
    assert (result.requeued, result.failed) == (2, 1)


def dispatches(jobs: Rows) -> None:
    enqueue("idle")
    take_role()
    assert dispatch().errors == []


def prunes(jobs: Rows) -> None:
    jobs.plant(type="idle", status="success", finished_at=ago(10**7))
    take_role()
    assert prune().errors == []


def changes_by_hand(jobs: Rows) -> None:
    job = enqueue("idle")
    take_role()
    cancel(Job, [job.pk], by="ann")
    requeue(Job, [job.pk], by="ann")


DONE: dict[str, Callable[[Rows], None]] = {
    "enqueue()": enqueues,
    "manage.py work": works,
    "LeasedTask": leases,
    "manage.py reap": reaps,
    "jobreaper.prune": prunes,
    "requeue()": changes_by_hand,
}


def grant(sql: Sql, grants: Any) -> None:
    for right, table in grants:
        sql(f'GRANT {right} ON "{table}" TO {ROLE}')


@pytest.mark.parametrize("program", DONE)
def test_the_rights_named_are_enough(program: str, role: None, sql: Sql, jobs: Rows) -> None:
    grant(sql, GRANTS[program])
    DONE[program](jobs)


@pytest.mark.parametrize(
    ("program", "missing"),
    # A pass keeps books of what does not happen in every pass.
    [(name, one) for name, all in GRANTS.items() if name != "manage.py reap" for one in all],
)
def test_none_of_the_rights_named_is_too_much(
    program: str,
    missing: Any,
    role: None,
    sql: Sql,
    jobs: Rows,
    caplog: pytest.LogCaptureFixture,
) -> None:
    grant(sql, [one for one in GRANTS[program] if one != missing])

    def do() -> None:
        DONE[program](jobs)
        assert "cannot record a rejected write" not in caplog.text

    with pytest.raises((ProgrammingError, AssertionError)):
        do()


SAID = "row-level security hides rows of jobreaper_jobs from the role"
TOKEN = "s3cret"
HEALTH = "/api/jobs/health"


@override_settings(JOBREAPER={"TICK_TOKEN": TOKEN})
def test_worker_pass_and_health_say_that_row_level_security_hides_jobs(
    role: None, sql: Sql, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue("idle")
    for program in ("manage.py work", "manage.py reap"):
        grant(sql, GRANTS[program])
    # For the health, which looks at every table.
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
    client, token = Client(), {"authorization": f"Bearer {TOKEN}"}
    sql("ALTER TABLE jobreaper_jobs ENABLE ROW LEVEL SECURITY")
    try:
        assert Worker(types=["none"]).run(once=True).claimed == 0
        assert "row-level security" not in caplog.text
        reap()
        assert client.get(HEALTH).json()["ok"] is True
        take_role()
        for _ in range(2):
            assert Worker().run(once=True).claimed == 0
        assert caplog.text.count(SAID) == 1
        seen, told = client.get(HEALTH), client.get(HEALTH, headers=token)
        assert any(SAID in error for error in reap().all_errors)
        sql(f"CREATE POLICY all_of_them ON jobreaper_jobs TO {ROLE} USING (true)")
        assert client.get(HEALTH).json()["ok"] is True
        assert Worker().run(once=True).claimed == 1
    finally:
        sql("DROP POLICY IF EXISTS all_of_them ON jobreaper_jobs")
        sql("ALTER TABLE jobreaper_jobs DISABLE ROW LEVEL SECURITY")
    assert (seen.status_code, seen.json()["error"]) == (503, UNSAID)
    assert (told.status_code, told.json()["ok"]) == (503, False)
    assert SAID in told.json()["error"]
