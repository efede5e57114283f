"""A database error quotes rows and values: nobody is told any of them."""

import logging
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import Error, IntegrityError

from jobreaper import cancel, claim, enqueue, enqueue_many, fail, hold, job_handler, requeue
from jobreaper.db import without_details
from jobreaper.logs import JsonFormatter
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group
from jobreaper.protocol.lease import Lease
from jobreaper.queue.handlers import _handlers
from jobreaper.queue.runs import run_due
from jobreaper.tables import table_of
from tests.celery.brokers import broker_url, celery_app, declare, deliver
from tests.committed import foreign_client, sql, transactional_db
from tests.rows import Sql

__all__ = ["foreign_client", "sql", "transactional_db"]

pytestmark = pytest.mark.usefixtures("transactional_db")

SECRET = "s3cret-that-nobody-may-be-told"
PAYLOAD = {"token": SECRET}

RECORDS = ("job_events", "jobreaper_passes", "jobreaper_refused_rows")

# Ways to refuse a row while quoting it: at once, by a trigger's own words, in PostgreSQL's first
# line, at COMMIT.
REFUSALS = {
    "check": "ALTER TABLE jobreaper_jobs ADD CONSTRAINT refused CHECK (id IS NULL) NOT VALID",
    "trigger": "CREATE TRIGGER refused BEFORE INSERT OR UPDATE OR DELETE ON jobreaper_jobs "
    "FOR EACH ROW EXECUTE FUNCTION refuse()",
    "cast": "CREATE TRIGGER refused BEFORE INSERT OR UPDATE OR DELETE ON jobreaper_jobs "
    "FOR EACH ROW EXECUTE FUNCTION refuse('by a cast')",
    "deferred": "CREATE CONSTRAINT TRIGGER refused AFTER INSERT OR UPDATE OR DELETE "
    "ON jobreaper_jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
}
FUNCTION = """
    CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_NARGS > 0 THEN
            PERFORM coalesce(to_jsonb(NEW), to_jsonb(OLD))::text::int;
        END IF;
        RAISE EXCEPTION 'refused' USING
            DETAIL = coalesce(to_jsonb(NEW), to_jsonb(OLD))::text,
            HINT = coalesce(to_jsonb(NEW), to_jsonb(OLD))::text;
    END $$
"""


@pytest.fixture(params=REFUSALS)
def refuse(request: pytest.FixtureRequest, sql: Sql) -> Iterator[Callable[[], object]]:
    """Let the table refuse every write from now on."""
    sql(FUNCTION)
    yield lambda: sql(REFUSALS[request.param])
    sql("DROP TRIGGER IF EXISTS refused ON jobreaper_jobs")
    sql("ALTER TABLE jobreaper_jobs DROP CONSTRAINT IF EXISTS refused")
    sql("DROP FUNCTION refuse()")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    job_handler("secretive")(lambda job, lease: None)
    yield
    del _handlers["secretive"]


@pytest.fixture
def told(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], sql: Sql
) -> Callable[[Callable[[], object]], str]:
    """Call something and return all that anybody is told: logged, printed, raised, returned,
    recorded.
    """
    caplog.set_level(logging.DEBUG, "jobreaper")

    def told(act: Callable[[], object]) -> str:
        raised = ""
        caplog.clear()
        try:
            returned = repr(act())
        except (Error, CommandError) as error:
            returned, raised = repr(error), "".join(traceback.format_exception(error))
        records = [r for r in caplog.records if r.name.split(".")[0] in ("jobreaper", "celery")]
        lines = [
            formatter.format(record)
            for record in records
            for formatter in (logging.Formatter(), JsonFormatter())
        ]
        rows = [
            sql("SELECT fail_code, fail_reason FROM jobreaper_jobs"),
            *(sql(f"SELECT to_jsonb(r)::text AS row FROM {name} r") for name in RECORDS),
        ]
        return "\n".join([returned, raised, *lines, *capfd.readouterr(), repr(rows)])

    return told


def claimed() -> Lease:
    lease = claim(Job, enqueue("secretive", PAYLOAD).pk)
    assert lease is not None
    return lease


def failed() -> Any:
    lease = claimed()
    lease.fail("broken", retry=False)
    return lease.pk


def held(job: Any) -> None:
    with hold(Job, job.pk):
        pass


VERBS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "claim": (lambda: enqueue("secretive", PAYLOAD), lambda job: claim(Job, job.pk)),
    "hold": (lambda: enqueue("secretive", PAYLOAD), held),
    "claim_group": (
        lambda: enqueue("secretive", PAYLOAD),
        lambda _: claim_group(table_of(Job), 9, types=["secretive"]),
    ),
    "tick": (lambda: enqueue("secretive", PAYLOAD), lambda _: run_due(1, 60)),
    "heartbeat": (claimed, Lease.heartbeat),
    "finish": (claimed, Lease.finish),
    "fail": (claimed, lambda lease: lease.fail("broken")),
    "release": (claimed, Lease.release),
    "requeue": (failed, lambda pk: requeue(Job, [pk], by="ann")),
    "cancel": (claimed, lambda lease: cancel(Job, [lease.pk], by="ann")),
    "fail by hand": (claimed, lambda lease: fail(Job, [lease.pk], by="ann")),
    "enqueue": (lambda: None, lambda _: enqueue("secretive", PAYLOAD)),
    "enqueue_many": (
        lambda: None,
        lambda _: enqueue_many([{"type": "secretive", "payload": PAYLOAD}] * 2),
    ),
    "work --once": (
        lambda: enqueue("secretive", PAYLOAD),
        lambda _: call_command("work", once=True),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_refused_write_quotes_no_row(verb: str, refuse: Any, told: Any) -> None:
    prepare, act = VERBS[verb]
    given = prepare()
    refuse()
    said = told(lambda: act(given))
    assert "refused" in said or "invalid_text_representation (SQLSTATE 22P02)" in said
    assert SECRET not in said


@pytest.mark.parametrize("command", ["reap", "prune"])
def test_a_command_whose_writes_are_refused_quotes_no_row(
    command: str, refuse: Any, told: Any, sql: Sql
) -> None:
    lease = claimed()
    if command == "prune":
        lease.finish()
    sql(
        "UPDATE jobreaper_jobs SET lease_expires_at = lease_expires_at - interval '1 year',"
        " finished_at = finished_at - interval '1 year'"
    )
    refuse()
    assert SECRET not in told(lambda: call_command(command))


def test_a_command_that_the_database_stops_says_one_line(sql: Sql) -> None:
    sql("ALTER TABLE jobreaper_pauses ADD CONSTRAINT refused CHECK (id IS NULL) NOT VALID")
    try:
        with pytest.raises(CommandError, match=r"\A.*refused.*\Z") as caught:
            call_command("pause", "secretive", reason=SECRET)
        assert caught.value.returncode == 1
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    finally:
        sql("ALTER TABLE jobreaper_pauses DROP CONSTRAINT refused")


def test_the_loop_of_passes_goes_on_and_quotes_no_row(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise IntegrityError(f"refused\nDETAIL: Failing row contains ({SECRET}).")

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("jobreaper.management.commands.reap.reap", broken)
    monkeypatch.setattr("time.sleep", stop)
    monkeypatch.setattr("jobreaper.presence.watch", lambda: None)
    try:
        said = told(lambda: call_command("reap", loop=True))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "the next one goes on" in said
    assert SECRET not in said


def refused_write(job: Any, lease: Any) -> None:
    """A user's own write, which the database refuses, behind an error of the user's."""
    try:
        Job.objects.create(type="other", payload=PAYLOAD)
    except IntegrityError as error:
        if job.type == "wrapped":
            raise ValueError("not written") from error
        raise


def by_worker(job: Job) -> None:
    call_command("work", once=True)


def by_tick(job: Job) -> None:
    run_due(1, 60)


def by_hold(job: Job) -> None:
    with pytest.raises((IntegrityError, ValueError)) as caught, hold(Job, job.pk) as lease:
        refused_write(job, lease)
    # It is the same error, so that code and collectors of errors know it.
    error = caught.value.__cause__ if job.type == "wrapped" else caught.value
    assert SECRET in error.__cause__.diag.message_detail  # type: ignore[union-attr]


def by_message(job: Job) -> None:
    with celery_app(broker_url("redis")) as app:
        deliver(declare(app, refused_write), job.pk)


def by_retry(job: Job) -> None:
    def work(job: Any, lease: Any) -> None:
        try:
            refused_write(job, lease)
        except (IntegrityError, ValueError) as error:
            raise task.retry(exc=error) from error

    with celery_app(broker_url("redis")) as app:
        task = declare(app, work)
        deliver(task, job.pk)


@pytest.mark.parametrize("max_attempts", [1, 3])
@pytest.mark.parametrize("type_", ["plain", "wrapped"])
@pytest.mark.parametrize("run", [by_worker, by_tick, by_hold, by_message, by_retry])
def test_a_users_database_error_quotes_no_row_in_what_is_told_of_its_job(
    run: Callable[[Job], None], type_: str, max_attempts: int, told: Any, sql: Sql
) -> None:
    job_handler(type_)(refused_write)
    sql("ALTER TABLE jobreaper_jobs ADD CONSTRAINT refused CHECK (type <> 'other')")
    try:
        job = enqueue(type_, PAYLOAD, max_attempts=max_attempts)
        said = told(lambda: run(job))
    finally:
        sql("ALTER TABLE jobreaper_jobs DROP CONSTRAINT refused")
        del _handlers[type_]
    assert SECRET not in said
    job.refresh_from_db()
    assert job.fail_code == ("IntegrityError" if type_ == "plain" else "ValueError")
    assert ("refused" if type_ == "plain" else "not written") in str(job.fail_reason)


def test_the_reason_given_by_a_verb_is_the_first_line_and_its_error_is_left_as_it_is() -> None:
    lease = claimed()
    error = IntegrityError(f"refused\nDETAIL: Failing row contains ({SECRET}).")
    lease.fail(error)
    lease.job.refresh_from_db()
    assert lease.job.fail_reason == "refused"
    assert SECRET in str(error)


def test_every_error_of_a_chain_and_of_a_group_is_reduced() -> None:
    def refused() -> IntegrityError:
        return IntegrityError(f"refused\nDETAIL: Failing row contains ({SECRET}).")

    group = ExceptionGroup("several", [refused(), ValueError("two\nlines")])
    group.__context__ = refused()
    group.__context__.__cause__ = group
    said = "".join(traceback.format_exception(without_details(group)))
    assert SECRET not in said
    assert "two\nlines" in str(group.exceptions[1])
