"""Spans of passes and runs: whose children they are and what they link to."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode

from jobreaper import LeaseLost, ahold, claim, enqueue, hold, job_handler, reap, tracing
from jobreaper.models import Job as OwnJob
from jobreaper.protocol.lease import Lease
from jobreaper.queue import handlers
from jobreaper.queue.worker import Worker
from jobreaper.states import EventType
from project.media.models import Job
from tests.loops import in_a_loop
from tests.rows import Rows, ago
from tests.tracing.conftest import Spans

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def jobs(sql: Callable[..., Any]) -> Rows:
    return Rows(sql, "jobs")


def claimed(pk: object, model: Any = Job) -> Lease:
    lease = claim(model, pk)
    assert lease is not None
    return lease


Ids = tuple[int, int]


def ids(context: SpanContext | None) -> Ids:
    """The trace and the span. What else is in a context depends on the way it came."""
    assert context is not None
    return context.trace_id, context.span_id


def of(span: Span | ReadableSpan) -> Ids:
    return ids(span.get_span_context())


def traceparent(context: Ids) -> str:
    """The beginning of a `traceparent`, to which flags are added."""
    return f"00-{context[0]:032x}-{context[1]:016x}-"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[tuple[Ids, dict[str, Any]]]:
    return [(ids(link.context), dict(link.attributes or {})) for link in span.links]


class TestRuns:
    """A span for each block that holds a lease."""

    def test_it_says_what_ran(self, spans: Spans, jobs: Rows) -> None:
        pk = jobs.plant(stage="clip")
        with hold(Job, pk, worker="host:1:abc"):
            pass
        [run] = spans.runs
        assert run.kind is SpanKind.CONSUMER
        assert attributes(run) == {
            "table": "jobs",
            "stage": "clip",
            "job": str(pk),
            "attempt": 1,
            "epoch": 1,
            "worker": "host:1:abc",
            "outcome": "finished",
        }
        assert run.status.status_code is StatusCode.UNSET

    def test_what_the_work_traces_is_inside_it(self, spans: Spans, jobs: Rows) -> None:
        with hold(Job, jobs.plant()), spans.tracer.start_as_current_span("ffmpeg"):
            pass
        assert ids(spans.one("ffmpeg").parent) == of(spans.runs[0])
        assert not trace.get_current_span().get_span_context().is_valid

    def test_what_a_coroutine_traces_is_inside_it_too(
        self, spans: Spans, jobs: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def work() -> None:
            with spans.tracer.start_as_current_span("around"):
                async with ahold(Job, jobs.plant()):
                    with spans.tracer.start_as_current_span("ffmpeg"):
                        pass
                with spans.tracer.start_as_current_span("after"):
                    pass

        in_a_loop(work)
        assert ids(spans.one("ffmpeg").parent) == of(spans.runs[0])
        assert ids(spans.one("after").parent) == of(spans.one("around"))
        assert not [record for record in caplog.records if "context" in record.message]

    def test_a_run_that_raised_is_an_error_without_its_message(
        self, spans: Spans, jobs: Rows
    ) -> None:
        with pytest.raises(ValueError, match="s3cret"), hold(Job, jobs.plant()):
            raise ValueError("s3cret")
        [run] = spans.runs
        assert run.status.status_code is StatusCode.ERROR
        assert attributes(run)["error.type"] == "ValueError"
        assert attributes(run)["outcome"] == "retried"
        assert "s3cret" not in run.to_json()

    @pytest.mark.parametrize("verb", ["finish", "release"])
    def test_the_outcome_is_the_verbs(self, verb: str, spans: Spans, jobs: Rows) -> None:
        with claimed(jobs.plant()) as lease:
            getattr(lease, verb)()
        outcome = {"finish": "finished", "release": "released"}[verb]
        assert attributes(spans.runs[0])["outcome"] == outcome

    def test_a_failure_for_good_is_told_from_a_retry(self, spans: Spans, jobs: Rows) -> None:
        with claimed(jobs.plant()) as lease:
            lease.fail("E1", retry=False)
        assert attributes(spans.runs[0])["outcome"] == "failed"

    def test_a_run_that_lost_its_lease_says_so(self, spans: Spans, jobs: Rows) -> None:
        with claimed(jobs.plant()) as lease:
            jobs.set(lease.pk, lease_expires_at=ago(1))
            reap([Job])
            with pytest.raises(LeaseLost):
                lease.finish()
        [run] = spans.runs
        assert attributes(run)["outcome"] == "lost"

    def test_an_ending_committed_after_the_run_does_no_harm(
        self, spans: Spans, jobs: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        with transaction.atomic(), claimed(jobs.plant()) as lease:
            lease.finish()
        assert "outcome" not in attributes(spans.runs[0])
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []

    def test_runs_inside_one_another_end_in_order(self, spans: Spans, jobs: Rows) -> None:
        with hold(Job, jobs.plant()), hold(Job, jobs.plant()):
            pass
        inner, outer = spans.runs
        assert ids(inner.parent) == of(outer)


class TestAttempts:
    """A later attempt links to the one before it, of which a killed worker tells nothing."""

    def test_a_requeued_attempt_links_to_the_one_that_died(self, spans: Spans, jobs: Rows) -> None:
        pk = jobs.plant(stage="clip")
        died: list[Ids] = []

        def die() -> None:
            lease = claimed(pk).__enter__()
            died.append(of(tracing._runs[lease].span))
            connection.close()

        # The trace that is current in its thread goes with it.
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
        jobs.set(pk, lease_expires_at=ago(1))
        assert reap([Job]).requeued == 1
        jobs.set(pk, next_earliest_run_at=ago(1))
        with hold(Job, pk):
            pass
        [run] = spans.runs
        assert links(run) == [(died[0], {"attempt": 1, "epoch": 1})]
        assert attributes(run)["attempt"] == 2

    def test_the_third_links_to_the_second(self, spans: Spans, jobs: Rows) -> None:
        pk = jobs.plant()
        for _ in range(3):
            with claimed(pk) as lease:
                lease.fail("E1", delay_sec=0)
        first, second, third = spans.runs
        assert links(first) == []
        assert [linked for linked, _ in links(second)] == [of(first)]
        assert [linked for linked, _ in links(third)] == [of(second)]

    def test_its_context_is_on_record_before_the_work_begins(
        self, spans: Spans, jobs: Rows
    ) -> None:
        pk = jobs.plant(stage="clip")
        with claimed(pk) as lease:
            [event] = jobs.events(pk)
            span = of(tracing._runs[lease].span)
        assert event["type"] == EventType.JOB_TRACED
        details = event["details"]
        assert details.pop("traceparent").startswith(traceparent(span))
        assert details == {
            "locked_by": lease.worker,
            "stage": "clip",
            "attempt": 1,
            "epoch": 1,
        }

    def test_of_a_job_that_is_not_traced_nothing_is_on_record(self, jobs: Rows) -> None:
        pk = jobs.plant()
        with hold(Job, pk):
            pass
        assert jobs.event_types(pk) == [EventType.JOB_FINISHED]


class TestEnqueued:
    """A run belongs to the trace in which its job was made."""

    def test_a_job_with_a_traceparent_remembers_it(self, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("request"):
            made = OwnJob.objects.create(type="mail")
            many = OwnJob.objects.bulk_create([OwnJob(type="mail"), OwnJob(type="mail")])
        for job in (made, *many):
            job.refresh_from_db()
            assert str(job.traceparent).startswith(traceparent(of(spans.one("request"))))

    def test_a_job_that_is_replaced_belongs_to_the_trace_of_its_payload(self, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("first"):
            enqueue("mail", {"n": 1}, dedupe="replace", dedupe_key="k")
        with spans.tracer.start_as_current_span("second"):
            job = enqueue("mail", {"n": 2}, dedupe="replace", dedupe_key="k")
        assert str(job.traceparent).startswith(traceparent(of(spans.one("second"))))

    def test_its_runs_are_in_that_trace_whenever_they_come(self, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("request"):
            job = OwnJob.objects.create(type="mail")
        with spans.tracer.start_as_current_span("worker's own"):
            for _ in range(2):
                with claimed(job.pk, OwnJob) as lease:
                    lease.fail("E1", delay_sec=0)
        request, around = of(spans.one("request")), of(spans.one("worker's own"))
        first, second = spans.runs
        assert ids(first.parent) == ids(second.parent) == request
        assert around in [linked for linked, _ in links(first)]
        assert of(first) in [linked for linked, _ in links(second)]

    def test_without_a_trace_there_is_none(self, spans: Spans) -> None:
        assert OwnJob.objects.create(type="mail").traceparent is None

    def test_a_row_with_a_bad_traceparent_runs_all_the_same(self, spans: Spans) -> None:
        job = OwnJob.objects.create(type="mail", traceparent="not a traceparent")
        with hold(OwnJob, job.pk):
            pass
        assert attributes(spans.runs[0])["outcome"] == "finished"

    def test_a_run_without_one_belongs_to_the_trace_around_it(
        self, spans: Spans, jobs: Rows
    ) -> None:
        with spans.tracer.start_as_current_span("around"), hold(Job, jobs.plant()):
            pass
        assert ids(spans.runs[0].parent) == of(spans.one("around"))
        assert links(spans.runs[0]) == []


class TestHandlers:
    """Runs of `manage.py work`."""

    @pytest.mark.parametrize("is_async", [False, True])
    def test_each_is_a_run_in_the_trace_of_its_job(self, is_async: bool, spans: Spans) -> None:
        def handle(job: Any, lease: Lease) -> None:
            with spans.tracer.start_as_current_span("handling"):
                if job.payload["fails"]:
                    raise ValueError("s3cret")

        async def handle_in_loop(job: Any, lease: Lease) -> None:
            await asyncio.sleep(0)
            handle(job, lease)

        job_handler("traced")(handle_in_loop if is_async else handle)
        try:
            with spans.tracer.start_as_current_span("request"):
                enqueue("traced", {"fails": False})
                enqueue("traced", {"fails": True}, max_attempts=1)
            tally = Worker(types=["traced"], listen=False).run(once=True)
        finally:
            del handlers._handlers["traced"]
        assert (tally.succeeded, tally.failed) == (1, 1)
        assert {ids(run.parent) for run in spans.runs} == {of(spans.one("request"))}
        inside = spans.named("handling")
        assert {ids(span.parent) for span in inside} == {of(run) for run in spans.runs}
        assert [attributes(run).get("error.type") for run in spans.runs].count("ValueError") == 1


class TestPasses:
    """A span for each pass."""

    def test_it_says_what_was_done_and_took_as_long_as_the_pass(
        self, spans: Spans, jobs: Rows
    ) -> None:
        jobs.plant_expired()
        jobs.plant_expired(max_attempts=1)
        with spans.tracer.start_as_current_span("beat"):
            result = reap([Job])
        span = spans.one("jobreaper.pass")
        assert attributes(span) == {
            "trigger": "python",
            "tables": ("jobs",),
            "requeued": 1,
            "failed": 1,
            "held": False,
        }
        assert span.start_time is not None
        assert span.end_time is not None
        took_ms = (span.end_time - span.start_time) / 1e6
        assert took_ms == pytest.approx(result.duration_ms, abs=0.01)
        assert ids(span.parent) == of(spans.one("beat"))

    def test_a_pass_with_an_error_is_an_error(
        self, spans: Spans, second_connection: psycopg.Connection[Any]
    ) -> None:
        second_connection.execute("ALTER TABLE jobs RENAME COLUMN reap_count TO away")
        second_connection.commit()
        try:
            assert reap([Job]).all_errors
        finally:
            second_connection.execute("ALTER TABLE jobs RENAME COLUMN away TO reap_count")
            second_connection.commit()
        assert spans.one("jobreaper.pass").status.status_code is StatusCode.ERROR

    def test_a_dry_run_is_no_pass(self, spans: Spans) -> None:
        reap(dry_run=True)
        assert spans.named("jobreaper.pass") == []


class TestTrouble:
    """A subscriber that cannot do its part stops nothing."""

    @pytest.fixture
    def no_events(self, sql: Callable[..., Any]) -> Any:
        sql(
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE 'not now'; END $$"""
        )
        sql(
            """CREATE TRIGGER refuse BEFORE INSERT ON job_events FOR EACH ROW
               WHEN (NEW.data ->> 'type' = 'job:traced') EXECUTE FUNCTION refuse()"""
        )
        yield
        sql("DROP FUNCTION refuse() CASCADE")

    def test_a_trace_that_cannot_be_put_on_record_costs_the_job_nothing(
        self, no_events: None, spans: Spans, jobs: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        alone, nested = jobs.plant(), jobs.plant()
        with hold(Job, alone):
            pass
        with transaction.atomic(), hold(Job, nested):
            Job.objects.filter(pk=nested).update(payload={"done": True})
        assert jobs.row(alone)["status"] == jobs.row(nested)["status"] == "success"
        assert jobs.row(nested)["payload"] == {"done": True}
        assert len(spans.runs) == 2
        assert len([r for r in caplog.records if r.name == "django.dispatch"]) == 2

    def test_an_exporter_that_raises_stops_no_run(
        self, spans: Spans, jobs: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise RuntimeError("the collector is away")

        monkeypatch.setattr(spans.exporter, "export", fail)
        pk = jobs.plant()
        with hold(Job, pk):
            pass
        reap([Job])
        assert jobs.row(pk)["status"] == "success"
