"""The dispatcher: due jobs not sent lately, in order, once, whatever becomes of their messages."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction
from django.test import override_settings
from kombu import Queue as Declaration

from jobreaper import enqueue, pause, resume
from jobreaper.celery.dispatcher import dispatch, dispatch_job
from jobreaper.models import Job
from jobreaper.states import Status
from jobreaper.tasks import dispatch as dispatch_task
from project.media.models import Job as MediaJob
from tests.celery.brokers import Queue, broker_url, celery_app, job_ids, leased
from tests.rows import Rows, Sql, ago, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")


def nothing(job: Any, lease: Any) -> None: ...


def handle(app: Celery, name: str = "tests.any", **options: Any) -> None:
    leased(app, name=name, **options)(nothing)


@pytest.fixture
def one_queue(one_app: Celery) -> Queue:
    """The queue of an app that has a task for every job of the ready-made table."""
    handle(one_app)
    return Queue(one_app)


def plant(jobs: Rows, n: int, **columns: Any) -> list[str]:
    """Insert jobs as a foreign client does, which sends nothing; return their ids."""
    return [str(jobs.plant(**columns)) for _ in range(n)]


# Which jobs, and in what order


def test_jobs_that_no_commit_hook_sent_are_found_and_sent_once(
    app: Celery, queue: Queue, jobs: Rows
) -> None:
    handle(app)
    ids = plant(jobs, 3)
    assert dispatch().sent["jobreaper_jobs"] == 3
    assert sorted(job_ids(queue.take())) == sorted(ids)
    assert dispatch().sent["jobreaper_jobs"] == 0
    assert queue.take() == []


def test_the_task_says_what_it_did(one_queue: Queue, jobs: Rows) -> None:
    plant(jobs, 2)
    done = dispatch_task()
    assert (done["sent"]["jobreaper_jobs"], done["errors"]) == (2, [])


@pytest.mark.parametrize("status", ["processing", "success", "failed", "cancelled"])
def test_jobs_that_are_not_queued_are_not_sent(status: str, one_queue: Queue, jobs: Rows) -> None:
    jobs.plant(status=status)
    assert dispatch().sent["jobreaper_jobs"] == 0


def test_a_job_is_sent_once_its_time_has_come(one_queue: Queue, jobs: Rows) -> None:
    key = jobs.plant(next_earliest_run_at=ahead(60))
    assert dispatch().sent["jobreaper_jobs"] == 0
    jobs.let_time_pass(key, 61)
    assert dispatch().sent["jobreaper_jobs"] == 1


def test_the_highest_priority_goes_first_then_the_oldest(one_queue: Queue, jobs: Rows) -> None:
    wanted = [
        jobs.plant(priority=5, next_earliest_run_at=ago(10)),
        jobs.plant(priority=5),
        jobs.plant(priority=0, next_earliest_run_at=ago(99)),
        jobs.plant(priority=0, next_earliest_run_at=ago(9)),
        jobs.plant(priority=-1, next_earliest_run_at=ago(999)),
    ]
    jobs.plant(priority=9, next_earliest_run_at=ahead(60))
    dispatch()
    assert job_ids(one_queue.take()) == list(map(str, wanted))


def test_batches_are_bounded_and_the_next_dispatch_goes_on(one_queue: Queue, jobs: Rows) -> None:
    ids = plant(jobs, 5, next_earliest_run_at=ago(5))
    sent = [dispatch(batch_size=2).sent["jobreaper_jobs"] for _ in range(4)]
    assert sent == [2, 2, 1, 0]
    assert sorted(job_ids(one_queue.take())) == sorted(ids)


def test_a_row_that_someone_has_locked_is_passed_over_and_sent_later(
    one_queue: Queue, jobs: Rows, second_connection: Any
) -> None:
    locked, free = plant(jobs, 2)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [locked])
    dispatch()
    assert job_ids(one_queue.take()) == [free]
    second_connection.rollback()
    dispatch()
    assert job_ids(one_queue.take()) == [locked]


# Messages that are lost


def test_messages_deleted_from_the_broker_are_sent_again(
    app: Celery, queue: Queue, jobs: Rows
) -> None:
    """kombu#1405."""
    handle(app)
    ids = plant(jobs, 3)
    dispatch()
    queue.purge()
    dispatch()
    assert queue.take() == []
    for key in ids:
        jobs.let_time_pass(key, 121)
    dispatch()
    assert sorted(job_ids(queue.take())) == sorted(ids)


def test_how_long_a_message_is_given_is_a_setting(one_queue: Queue, jobs: Rows) -> None:
    with override_settings(JOBREAPER={"DISPATCH_AGAIN_SEC": 10}):
        [key] = plant(jobs, 1)
        dispatch()
        jobs.let_time_pass(key, 9)
        assert dispatch().sent["jobreaper_jobs"] == 0
        jobs.let_time_pass(key, 2)
        assert dispatch().sent["jobreaper_jobs"] == 1


# Several at once


def test_several_dispatchers_at_once_send_each_job_once(
    app: Celery, queue: Queue, jobs: Rows, sql: Sql
) -> None:
    """preloop#708."""
    handle(app)
    sql(
        "INSERT INTO jobreaper_jobs (id, type, next_earliest_run_at, payload, created_at)"
        " SELECT gen_random_uuid(), 'mail', now(), '{}', now() FROM generate_series(1, 200)"
    )

    def run(_: int) -> int:
        try:
            return sum(dispatch(batch_size=10).sent["jobreaper_jobs"] for _ in range(10))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as executor:
        sent = sum(executor.map(run, range(4)))
    assert sent == 200
    ids = job_ids(queue.take())
    assert (len(ids), len(set(ids))) == (200, 200)


def test_a_commit_hook_and_a_dispatcher_send_a_job_once(one_queue: Queue, jobs: Rows) -> None:
    job = enqueue("mail")
    assert dispatch().sent["jobreaper_jobs"] == 0
    assert not dispatch_job(Job, job.pk)
    assert job_ids(one_queue.take()) == [str(job.pk)]


# Which task


def test_a_stages_own_task_comes_before_the_models(one_app: Celery, jobs: Rows) -> None:
    handle(one_app)
    handle(one_app, "tests.pdf", stage="pdf")
    pdf, other, bare = enqueue("pdf"), enqueue("other"), jobs.plant(stage=None)
    dispatch()
    tasks = {m.payload[0][0]: m.headers["task"] for m in Queue(one_app).take()}
    assert tasks == {pdf.pk: "tests.pdf", other.pk: "tests.any", bare: "tests.any"}


def test_models_have_tasks_of_their_own(one_app: Celery, media: Rows) -> None:
    handle(one_app)
    handle(one_app, "tests.clip", model="media.Job", stage="clip")
    clip = MediaJob.objects.create(stage="clip")
    burnin = MediaJob.objects.create(stage="burnin")
    tasks = {m.payload[0][0]: m.headers["task"] for m in Queue(one_app).take()}
    # The host project's own task has the stages that no other has.
    assert tasks == {clip.pk: "tests.clip", burnin.pk: "project.media.tasks.render"}


def test_a_job_that_nobody_handles_stays_queued_and_is_named(
    one_app: Celery, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    handle(one_app, stage="pdf")
    pdf, *fax = plant(jobs, 1, stage="pdf") + plant(jobs, 2, type="fax")
    first, second = dispatch(), dispatch()
    assert first.unhandled == second.unhandled == {"jobreaper_jobs": {"fax": 2}}
    assert job_ids(Queue(one_app).take()) == [pdf]
    assert {(row["status"], row["dispatched_at"]) for row in map(jobs.row, fax)} == {
        (Status.QUEUED, None)
    }
    # Once, and not every few seconds.
    assert (
        caplog.text.count("nothing handles these jobs of jobreaper_jobs, so they wait: {'fax': 2}")
        == 1
    )


def test_an_unhandled_job_stands_in_nobodys_way(one_app: Celery, jobs: Rows) -> None:
    handle(one_app, stage="pdf")
    plant(jobs, 5, stage="fax", next_earliest_run_at=ago(99))
    plant(jobs, 1, stage="pdf", next_earliest_run_at=ago(1))
    assert dispatch(batch_size=2).sent["jobreaper_jobs"] == 1


def test_a_table_without_any_task_is_left_to_its_own_workers(one_app: Celery, jobs: Rows) -> None:
    plant(jobs, 1)
    result = dispatch()
    assert "jobreaper_jobs" not in result.sent
    assert "jobreaper_jobs" not in result.unhandled
    assert not dispatch_job(Job, jobs.plant())


def test_two_tasks_for_one_stage_are_a_mistake_that_is_said_once(
    one_app: Celery, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    handle(one_app, "tests.a", stage="pdf")
    handle(one_app, "tests.b", stage="pdf")
    enqueue("pdf")
    dispatch()
    assert [m.headers["task"] for m in Queue(one_app).take()] == ["tests.a"]
    assert caplog.text.count("tests.a and tests.b both handle stage 'pdf' of jobreaper.Job") == 1


def test_a_task_with_a_bad_model_is_named_and_stops_no_other(
    one_app: Celery, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    handle(one_app)
    handle(one_app, "tests.bad", model="media.Gone")
    plant(jobs, 1)
    assert dispatch().sent["jobreaper_jobs"] == 1
    assert caplog.text.count("task tests.bad: no model 'media.Gone'") == 1


# What must not run now


def test_a_paused_type_or_stage_is_not_sent_until_it_is_resumed(
    one_queue: Queue, jobs: Rows
) -> None:
    pause("mail")
    pause("slow")
    plant(jobs, 1, type="mail")
    plant(jobs, 1, type="other", stage="slow")
    job = enqueue("mail")
    assert dispatch().sent["jobreaper_jobs"] == 0
    assert jobs.row(job.pk)["dispatched_at"] is None
    resume("mail")
    resume("slow")
    assert dispatch().sent["jobreaper_jobs"] == 3


def test_no_more_of_a_stage_are_sent_than_may_run(one_queue: Queue, jobs: Rows) -> None:
    with override_settings(JOBREAPER={"STAGES": {"gpu": {"max_running": 2}}}):
        jobs.plant_running(stage="gpu")
        gpu = plant(jobs, 5, stage="gpu")
        plant(jobs, 3, stage="other")
        assert dispatch().sent["jobreaper_jobs"] == 1 + 3
        assert dispatch().sent["jobreaper_jobs"] == 0
        assert len(set(job_ids(one_queue.take())) & set(gpu)) == 1


# Trouble


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens to, and nobody else can take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_with_the_broker_away_jobs_stay_queued_and_are_sent_when_it_is_back(
    scheme: str, closed_port: int, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """openedx#15543."""
    with celery_app(f"{scheme}://127.0.0.1:{closed_port}//") as app:
        handle(app)
        ids = [str(enqueue("mail").pk), str(Job.objects.create(type="mail").pk), *plant(jobs, 2)]
        [error] = dispatch().errors
        assert error.startswith("jobreaper_jobs: ")
    assert "was not sent: " in caplog.text
    assert "jobs of jobreaper_jobs were not sent: " in caplog.text
    assert {(row["status"], row["dispatched_at"]) for row in jobs.all().values()} == {
        (Status.QUEUED, None)
    }
    with celery_app(broker_url("redis")) as app:
        handle(app)
        dispatch()
        queue = Queue(app)
        assert sorted(job_ids(queue.take())) == sorted(ids)


def test_a_job_that_cannot_be_enqueued_to_celery_is_still_made(
    closed_port: int, jobs: Rows
) -> None:
    with celery_app(f"redis://127.0.0.1:{closed_port}/0") as app:
        handle(app)
        with transaction.atomic():
            first, second = enqueue("mail"), enqueue("mail")
    assert {first.pk, second.pk} == set(jobs.all())


def test_a_stage_whose_queue_does_not_take_it_stops_no_other(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    with celery_app(broker_url("rabbitmq")) as app:
        handle(app)
        bad = Queue(app, f"{app.conf.task_default_queue}-bad")
        with app.connection_for_write() as connection:
            Declaration(bad.name, max_priority=5)(connection.default_channel).declare()
        with override_settings(JOBREAPER={"STAGES": {"bad": {"queue": bad.name}}}):
            [stuck] = plant(jobs, 1, stage="bad", next_earliest_run_at=ago(99))
            good = plant(jobs, 2, stage="good")
            dispatch()
            assert sorted(job_ids(Queue(app).take())) == sorted(good)
            # Tried again with those sent lately, and in nobody's way until then.
            assert jobs.row(stuck)["dispatched_at"] is not None
            assert f"cannot send jobreaper_jobs {stuck}" in caplog.text
        bad.delete()
        Queue(app).delete()


def test_one_tables_trouble_stops_no_other(
    one_app: Celery, jobs: Rows, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    handle(one_app)
    plant(jobs, 1)
    sql("ALTER TABLE jobs RENAME TO jobs_away")
    try:
        result = dispatch()
    finally:
        sql("ALTER TABLE jobs_away RENAME TO jobs")
    assert result.sent["jobreaper_jobs"] == 1
    [error] = result.errors
    assert error.startswith("jobs: ")
    assert "jobs of jobs were not sent" in caplog.text


def test_a_task_for_a_table_without_leases_stops_no_other(one_app: Celery, media: Rows) -> None:
    handle(one_app, "tests.mistaken", model="documents.ExecutorJob")
    media.plant()
    result = dispatch()
    assert result.sent["jobs"] == 1
    [error] = result.errors
    assert error.startswith("executor_jobs: jobs of executor_jobs can be reaped but not leased")


def test_a_connection_that_died_in_the_pool_costs_no_job(jobs: Rows) -> None:
    with celery_app(broker_url("rabbitmq")) as app:
        handle(app)
        queue = Queue(app)
        first = enqueue("mail")
        assert job_ids(queue.take()) == [str(first.pk)]
        with app.pool.acquire() as pooled:
            # What a broker or a firewall does to an idle connection.
            connection: Any = pooled.connection
            connection.transport.sock.shutdown(socket.SHUT_RDWR)
        second = enqueue("mail")
        assert job_ids(queue.take()) == [str(second.pk)]
        queue.delete()


def test_in_eager_mode_a_job_runs_as_soon_as_its_transaction_commits(jobs: Rows) -> None:
    with celery_app("memory://", task_always_eager=True) as app:
        handle(app)
        with transaction.atomic():
            job = enqueue("mail")
            assert Job.objects.get().status == Status.QUEUED
        assert jobs.row(job.pk)["status"] == Status.SUCCESS


def test_the_log_of_a_dispatch_without_trouble_is_empty(
    one_queue: Queue, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    plant(jobs, 2)
    with caplog.at_level(logging.WARNING):
        dispatch()
    assert caplog.records == []
