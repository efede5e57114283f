"""The scrape of databases that do not answer as they should."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from jobreaper import reap
from jobreaper.explaining import facts
from jobreaper.metrics import prometheus, readings
from jobreaper.tables import table_of
from project.media.models import Job
from tests.metrics.page import Sql, scrape
from tests.rows import Rows
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@contextmanager
def database_at(port: socket.socket) -> Iterator[None]:
    """Let the database be looked for at another port, by connections that are made now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings["default"], "HOST", "127.0.0.1")
        patch.setitem(connections.settings["default"], "PORT", str(port.getsockname()[1]))
        yield


class TestTrouble:
    """The scrape answers whatever is wrong, says so, and tells nothing stale."""

    @pytest.fixture
    def port(self) -> Iterator[socket.socket]:
        """A port at which nobody answers."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            yield listener

    def test_a_database_that_is_down(
        self, jobs: Rows, port: socket.socket, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs.plant_expired()
        reap()
        assert scrape().value("jobreaper_up") == 1
        with database_at(port):
            page = scrape()
            assert page.value("jobreaper_up") == 0
            assert set(page.samples) == {"jobreaper_up"}, "nothing from before is told"
            assert "python_info" in page.text, "other people's metrics are served"
            assert scrape().value("jobreaper_up") == 0
        assert scrape().value("jobreaper_up") == 1
        said = [r for r in caplog.records if r.name == "jobreaper.metrics.prometheus"]
        assert len(said) == 1, "the same trouble is told once"

    def test_a_database_that_does_not_answer_costs_a_bounded_time(
        self, jobs: Rows, port: socket.socket
    ) -> None:
        port.listen()
        with pytest.MonkeyPatch.context() as patch, database_at(port):
            patch.setattr(readings, "BUDGET_SEC", 0.2)
            assert scrape().value("jobreaper_up") == 0
            assert scrape().value("jobreaper_up") == 0
            askers = [t for t in threading.enumerate() if t.name.startswith("jobreaper-metrics")]
            assert len(askers) == 1, "while one hangs no second one is sent after it"
            port.close()
            until(lambda: not askers[0].is_alive())
        assert scrape().value("jobreaper_up") == 1, "the late answer is not told"

    def test_a_locked_table_is_left_out_and_the_others_are_there(
        self, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(facts, "LOCK_TIMEOUT_SEC", 0.05)
        second_connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        page = scrape()
        assert page.value("jobreaper_up") == 0
        tables = {dict(labels)["table"] for labels in page.samples["jobreaper_jobs"]}
        assert "jobs" not in tables
        assert "asr_jobs" in tables
        assert page.samples["reaper_requeues_total"]

    def test_a_database_that_is_not_migrated(self, sql: Sql) -> None:
        sql("ALTER TABLE jobreaper_totals RENAME TO away")
        try:
            page = scrape()
        finally:
            sql("ALTER TABLE away RENAME TO jobreaper_totals")
        assert page.value("jobreaper_up") == 0
        assert "reaper_requeues_total" not in page.samples
        assert page.samples["jobreaper_jobs"]

    def test_wrong_settings(self) -> None:
        with override_settings(JOBREAPER={"HEARTBEAT_SEC": -1}):
            page = scrape()
        assert set(page.samples) == {"jobreaper_up"}
        assert page.value("jobreaper_up") == 0

    def test_a_broken_transaction_of_the_request_is_left_alone(self, jobs: Rows) -> None:
        with transaction.atomic():
            mine = jobs.plant()
            with connection.cursor() as cursor:
                with pytest.raises(Exception, match="division by zero"):
                    cursor.execute("SELECT 1/0")
                page = scrape()
            assert connection.needs_rollback is False
            transaction.set_rollback(True)
        assert page.value("jobreaper_up") == 1
        assert page.value("jobreaper_jobs", table="jobs", status="queued") == 1
        assert mine

    def test_no_connection_is_left_behind(self, sql: Sql) -> None:
        def sessions() -> int:
            found = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
            return int(sql(found)[0]["n"])

        before = sessions()
        for _ in range(5):
            scrape()
        until(lambda: sessions() <= before)


def test_with_one_database_down_the_others_tables_are_told_and_no_sum_over_all(
    jobs: Rows,
) -> None:
    jobs.plant_expired(stage="clip")
    reap()
    whole = readings.read(connection, [table_of(Job)])
    page = prometheus._Page()
    page.fill([whole, readings.Reading(["elsewhere"], errors=["down"])])
    told = {metric.name: metric.samples for metric in page}
    assert [s.value for s in told["reaper_requeues"] if s.labels["stage"] == "clip"] == [1]
    for name in ("reaper_held", "reaper_detection_latency_seconds"):
        assert told[name] == []
    assert told["reaper_last_success_timestamp_seconds"] == []
