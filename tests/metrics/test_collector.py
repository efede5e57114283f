"""What the collector tells of the job tables."""

import threading

import pytest
from django.test import Client, RequestFactory

from jobreaper import conf, reap
from jobreaper.base import LATE_AFTER_BEATS
from jobreaper.metrics import prometheus, readings
from jobreaper.overview import tables as counting
from jobreaper.states import LeaseState
from project.media.models import Job
from tests.metrics.page import Page, Sql, scrape, scrape_again
from tests.rows import Rows, ago, ahead
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


# DESIGN.md section 7, and what the page has besides.
CONTRACT = {
    "reaper_requeues": ("counter", {"table", "stage"}),
    "reaper_failures": ("counter", {"table", "stage"}),
    "reaper_scan_duration_seconds": ("summary", {"table"}),
    "reaper_detection_latency_seconds": ("summary", set()),
    "reaper_held": ("counter", set()),
    "reaper_common_silences": ("counter", set()),
    "reaper_last_success_timestamp_seconds": ("gauge", set()),
    "jobreaper_jobs": ("gauge", {"table", "status"}),
    "jobreaper_queued_jobs": ("gauge", {"table", "queue"}),
    "jobreaper_leases": ("gauge", {"table", "state"}),
    "jobreaper_oldest_due_age_seconds": ("gauge", {"table"}),
    "jobreaper_refused_rows": ("gauge", {"table"}),
    "jobreaper_taken_back": ("counter", {"table", "reason"}),
    "jobreaper_stale_writes": ("counter", {"table"}),
    "jobreaper_workers": ("gauge", {"kind", "state"}),
    "jobreaper_worker_lost": ("counter", {"table", "stage", "outcome"}),
    "jobreaper_schedule_last_timestamp_seconds": ("gauge", {"schedule"}),
    "jobreaper_schedule_next_timestamp_seconds": ("gauge", {"schedule"}),
    "jobreaper_schedule_overdue_seconds": ("gauge", {"schedule"}),
    "jobreaper_schedule_paused": ("gauge", {"schedule"}),
    "jobreaper_schedule_failing": ("gauge", {"schedule"}),
    "jobreaper_up": ("gauge", set()),
}


def test_names_types_and_labels_are_those_of_the_design() -> None:
    page = scrape()
    assert page.types == {name: kind for name, (kind, _) in CONTRACT.items()}
    for name, series in page.samples.items():
        base = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")
        for labels in series:
            assert set(dict(labels)) == CONTRACT[base][1], name


def test_the_page_of_django_prometheus_has_them() -> None:
    pytest.importorskip("django_prometheus")
    response = Client().get("/metrics")
    assert response.status_code == 200
    assert Page(response.content.decode()).value("jobreaper_up") == 1


def test_a_page_of_its_own_has_them_and_nothing_else() -> None:
    response = prometheus.metrics(RequestFactory().get("/"))
    page = Page(response.content.decode())
    assert page.types == scrape().types
    assert "python_info" not in page.text


def test_only_unfinished_jobs_are_counted(jobs: Rows, own_jobs: Rows) -> None:
    for status in ("queued", "queued", "success", "failed", "cancelled"):
        jobs.plant(status=status)
    jobs.plant_running()
    own_jobs.plant()
    page = scrape()
    assert page.by("table", "status", of="jobreaper_jobs") == {
        ("jobs", "queued"): 2,
        ("jobs", "processing"): 1,
        ("jobreaper_jobs", "queued"): 1,
    }
    statuses = {dict(labels)["status"] for labels in page.samples["jobreaper_jobs"]}
    assert statuses == {"queued", "processing"}


class TestLeases:
    """`live`, `late`, `expired`, `none`: the same rule as in the admin."""

    def test_each_state_is_counted(self, jobs: Rows) -> None:
        late = LATE_AFTER_BEATS * conf.settings().heartbeat_sec
        jobs.plant_running()
        jobs.plant_running(last_heartbeat_at=ago(late - 5))
        jobs.plant_running(last_heartbeat_at=ago(late + 5))
        jobs.plant_expired()
        jobs.plant_running(lease_expires_at=None)
        assert scrape().by("table", "state", of="jobreaper_leases") == {
            ("jobs", "live"): 2,
            ("jobs", "late"): 1,
            ("jobs", "expired"): 1,
            ("jobs", "none"): 1,
        }

    def test_every_row_has_the_state_that_the_queryset_gives_it(self, jobs: Rows) -> None:
        late = LATE_AFTER_BEATS * conf.settings().heartbeat_sec
        for expires in (None, ago(100), ago(1), ahead(1000)):
            for beat in (None, ago(late * 2), ago(late + 3), ago(late - 20), ahead(5)):
                for status in ("processing", "queued", "success"):
                    jobs.plant(status=status, lease_expires_at=expires, last_heartbeat_at=beat)
        by_queryset = {
            state.value: Job.objects.in_lease_state(state).count() for state in LeaseState
        }
        assert scrape().by("state", of="jobreaper_leases") == by_queryset
        assert sum(by_queryset.values()) == 20

    def test_jobs_without_leases_are_live_until_their_time_to_live_is_over(self, sql: Sql) -> None:
        for kind, minutes in (("run_tsa", 29), ("run_tsa", 31), ("unlimited", 500)):
            sql(
                """INSERT INTO executor_jobs (type, status, locked_at)
                   VALUES (%s, 'running', now() - make_interval(mins => %s))""",
                kind,
                minutes,
            )
        assert scrape().by("table", "state", of="jobreaper_leases") == {
            ("executor_jobs", "live"): 1,
            ("executor_jobs", "expired"): 1,
            ("executor_jobs", "none"): 1,
        }


class TestOldestDue:
    """`jobreaper_oldest_due_age_seconds`: since when the oldest job could have been claimed."""

    @staticmethod
    def age(table: str = "jobs") -> int:
        return round(scrape().value("jobreaper_oldest_due_age_seconds", table=table) / 10) * 10

    def test_it_is_0_without_a_due_job(self, jobs: Rows) -> None:
        jobs.plant(next_earliest_run_at=ahead(100), created_at=ago(5000))
        jobs.plant_running(created_at=ago(5000))
        jobs.plant(status="success", created_at=ago(5000))
        assert self.age() == 0

    def test_it_counts_from_the_time_a_job_was_to_wait_for(self, jobs: Rows) -> None:
        jobs.plant(next_earliest_run_at=ago(300), created_at=ago(9000))
        jobs.plant(next_earliest_run_at=ago(100), created_at=ago(9000))
        assert self.age() == 300

    def test_it_counts_from_the_making_of_a_job_without_such_a_time(self, jobs: Rows) -> None:
        jobs.plant(created_at=ago(200))
        jobs.plant(created_at=ago(400))
        jobs.plant(next_earliest_run_at=ago(100))
        assert self.age() == 400

    def test_a_released_job_has_waited_since_its_worker_let_go(self, jobs: Rows) -> None:
        waited = {"next_earliest_run_at": ago(9000), "created_at": ago(9000)}
        jobs.plant(**waited, last_heartbeat_at=ago(50))
        assert self.age() == 50
        jobs.plant(**waited, last_heartbeat_at=ago(70))
        assert self.age() == 70

    def test_a_time_without_end_is_no_time(self, jobs: Rows) -> None:
        sql = "INSERT INTO jobs (next_earliest_run_at, created_at) VALUES ('-infinity', %s)"
        jobs.sql(sql, "-infinity")
        jobs.plant(created_at=ago(200))
        assert self.age() == 200

    def test_random_keys_hide_nothing(self, own_jobs: Rows) -> None:
        for n in range(30):
            own_jobs.plant(created_at=ago(n * 10))
        assert self.age("jobreaper_jobs") == 290

    def test_an_adopted_table_is_read_as_far_as_its_columns_go(self, sql: Sql) -> None:
        sql("INSERT INTO executor_jobs (type, created_at) VALUES ('a', now() - interval '70 s')")
        assert self.age("executor_jobs") == 70


class TestEstimates:
    """Beyond a bound nothing is counted to the end."""

    @pytest.fixture(autouse=True)
    def low_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counting, "MOST_COUNTED", 500)

    def plant(self, sql: Sql, status: str, n: int) -> None:
        sql(
            """INSERT INTO jobs (status, lease_expires_at, last_heartbeat_at)
               SELECT %s, CASE WHEN n %% 4 > 0 THEN now() + interval '1 h' END, now()
                 FROM generate_series(1, %s) AS n""",
            status,
            n,
        )

    def test_at_the_bound_counts_are_exact(self, sql: Sql) -> None:
        self.plant(sql, "queued", 500)
        self.plant(sql, "processing", 500)
        page = scrape()
        assert page.value("jobreaper_jobs", table="jobs", status="queued") == 500
        assert page.value("jobreaper_jobs", table="jobs", status="processing") == 500
        assert page.value("jobreaper_leases", table="jobs", state="live") == 375

    def test_beyond_it_they_are_the_planners(self, sql: Sql) -> None:
        self.plant(sql, "queued", 4000)
        self.plant(sql, "processing", 2000)
        self.plant(sql, "success", 3000)
        sql("ANALYZE jobs")
        page = scrape()
        assert 3500 < page.value("jobreaper_jobs", table="jobs", status="queued") < 4500
        running = page.value("jobreaper_jobs", table="jobs", status="processing")
        assert 1700 < running < 2300
        assert running == sum(page.by("state", of="jobreaper_leases").values())

    def test_never_analysed_a_table_has_at_least_what_was_counted(self, sql: Sql) -> None:
        self.plant(sql, "queued", 2000)
        assert scrape().value("jobreaper_jobs", table="jobs", status="queued") > 500

    def test_an_adopted_table_without_an_index_for_its_queue_is_not_read(
        self, sql: Sql, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sql(
            """INSERT INTO executor_jobs (type, status)
               SELECT 'a', CASE WHEN n % 4 = 0 THEN 'queued' ELSE 'success' END
                 FROM generate_series(1, 4000) AS n"""
        )
        sql("ANALYZE executor_jobs")
        monkeypatch.setattr(counting, "MOST_COST", 10)
        page = scrape()
        assert page.value("jobreaper_up") == 1
        assert 800 < page.value("jobreaper_jobs", table="executor_jobs", status="queued") < 1200
        ages = page.samples["jobreaper_oldest_due_age_seconds"]
        assert frozenset({("table", "executor_jobs")}) not in ages


class TestCache:
    """A database is asked at most once in five seconds."""

    def test_what_a_foreign_client_does_is_seen_when_the_answer_is_old(
        self, jobs: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scrape()
        jobs.plant()
        assert scrape_again().by("status", of="jobreaper_jobs") == {}
        monkeypatch.setattr(prometheus, "CACHE_SEC", 0.05)
        scrape()
        jobs.plant()
        until(lambda: scrape_again().by("status", of="jobreaper_jobs") == {"queued": 2})

    def test_a_pass_of_this_process_is_seen_at_once(self, jobs: Rows) -> None:
        jobs.plant_expired()
        scrape()
        reap()
        assert scrape_again().by("table", of="reaper_requeues_total") == {"jobs": 1}

    def test_scrapes_at_once_ask_once(self) -> None:
        asked = []
        pages: list[Page] = []

        class Counting(readings.Askers):
            def ask(self) -> dict[str, readings.Reading]:
                asked.append(1)
                return super().ask()

        start = threading.Barrier(8)

        def one_scrape() -> None:
            start.wait()
            pages.append(scrape_again())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prometheus.collector, "_askers", Counting())
            threads = [threading.Thread(target=one_scrape) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(asked) == 1
        assert all(page.value("jobreaper_up") == 1 for page in pages)


def test_series_are_bounded_whoever_works(jobs: Rows) -> None:
    """client_python#1033: no worker, no job and no message is a label."""

    def series() -> int:
        return sum(len(found) for found in scrape().samples.values())

    before = series()
    for n in range(20):
        jobs.plant_expired(stage="clip", locked_by=f"host:{n}:token")
        reap([Job])
    assert series() == before


def test_queued_jobs_are_counted_by_queue(own_jobs: Rows) -> None:
    own_jobs.plant()
    for _ in range(2):
        own_jobs.plant(queue="slow")
    own_jobs.plant_running(queue="slow")
    assert scrape().by("table", "queue", of="jobreaper_queued_jobs") == {
        ("jobreaper_jobs", "default"): 1,
        ("jobreaper_jobs", "slow"): 2,
    }
