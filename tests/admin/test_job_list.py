"""The list of jobs: lease states, filters, search, and what it asks of a large table."""

import re

import pytest
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext

import jobreaper
from jobreaper.admin import filters
from jobreaper.models import Job as OwnJob
from project.media.models import AsrJob, Job
from tests.admin.conftest import claimed, execute, make_job
from tests.admin.pages import html, list_of, listed, text

pytestmark = pytest.mark.django_db

JOBS = list_of(Job)


def leave(pk: object, **since: str) -> None:
    """Let some columns of a job lie in the past or the future, as intervals from now."""
    for column, interval in since.items():
        execute(f"UPDATE jobs SET {column} = now() + %s::interval WHERE id = %s", interval, pk)


def lease_cells(page: str) -> list[str]:
    cells = re.findall(r'(?s)<td class="field-lease[^"]*">(.*?)</td>', page)
    return [text(cell) for cell in cells]


def columns(page: str) -> list[str]:
    return re.findall(r'class="(?:sortable )?column-(\w+)', page)


def test_a_list_of_one_status_has_no_column_that_would_be_empty(superuser: Client) -> None:
    lease = claimed()
    make_job()
    every = columns(html(superuser, JOBS))
    assert {"lease", "locked_by", "next_run", "trouble"} < set(every)
    queued = columns(html(superuser, f"{JOBS}?status=queued"))
    assert queued == [name for name in every if name not in ("lease", "locked_by")]
    running = columns(html(superuser, f"{JOBS}?status=processing"))
    assert running == [name for name in every if name != "next_run"]
    lease.fail("boom", retry=False)
    failed = columns(html(superuser, f"{JOBS}?status=failed"))
    assert failed == [name for name in every if name not in ("lease", "locked_by", "next_run")]


# Lease states


def test_a_lease_that_is_beaten_is_live(superuser: Client) -> None:
    claimed()
    page = html(superuser, JOBS)
    assert re.fullmatch(r"live \d+ min \d+ s left", lease_cells(page)[0])
    assert 'class="jr-badge jr-live"' in page


def test_a_lease_that_missed_its_beats_is_late(superuser: Client) -> None:
    leave(claimed().pk, last_heartbeat_at="-100 s")
    page = html(superuser, JOBS)
    assert lease_cells(page) == ["late silent for 1 min 40 s"]
    assert 'class="jr-badge jr-late"' in page


def test_a_lease_without_any_beat_is_late(superuser: Client) -> None:
    pk = claimed().pk
    execute("UPDATE jobs SET last_heartbeat_at = NULL WHERE id = %s", pk)
    assert lease_cells(html(superuser, JOBS))[0].startswith("late ")


def test_a_lease_that_ran_out_is_expired(superuser: Client) -> None:
    leave(claimed().pk, lease_expires_at="-2 h")
    page = html(superuser, JOBS)
    assert lease_cells(page) == ["expired 2 h 0 min ago"]
    assert 'class="jr-badge jr-expired"' in page


def test_a_running_row_with_nothing_but_its_status_is_none(superuser: Client) -> None:
    execute("INSERT INTO jobs (status) VALUES ('processing')")
    page = html(superuser, JOBS)
    assert lease_cells(page) == ["none no lease"]
    assert 'class="jr-badge jr-none"' in page


@pytest.mark.parametrize("status", ["queued", "success", "failed", "cancelled"])
def test_a_job_that_is_not_running_has_no_lease_state(superuser: Client, status: str) -> None:
    make_job(status=status)
    assert lease_cells(html(superuser, JOBS)) == ["-"]


def test_a_queued_job_says_when_it_is_due(superuser: Client) -> None:
    leave(make_job().pk, next_earliest_run_at="2 h 30 s")
    assert "in 2 h 0 min" in text(html(superuser, JOBS))


def test_a_model_with_a_plain_manager_shows_its_leases_too(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: models.Manager[Job] = models.Manager()
    plain.model = Job
    monkeypatch.setitem(Job._meta.__dict__, "default_manager", plain)
    lease = claimed()
    assert lease_cells(html(superuser, f"{JOBS}?lease=live"))[0].startswith("live ")
    assert listed(superuser, f"{JOBS}?lease=live") == [lease.pk]


# Filters


@pytest.mark.parametrize("status", ["queued", "processing", "success", "failed", "cancelled"])
def test_the_status_filter_finds_that_status_only(superuser: Client, status: str) -> None:
    jobs = {
        word: make_job(status=word)
        for word in ("queued", "processing", "success", "failed", "cancelled")
    }
    assert listed(superuser, f"{JOBS}?status={status}") == [jobs[status].pk]


@pytest.mark.parametrize("state", ["live", "late", "expired", "none"])
def test_the_lease_filter_finds_that_state_only(superuser: Client, state: str) -> None:
    leases = {word: claimed().pk for word in ("live", "late", "expired", "none")}
    leave(leases["late"], last_heartbeat_at="-100 s")
    leave(leases["expired"], lease_expires_at="-1 s")
    execute("UPDATE jobs SET lease_expires_at = NULL WHERE id = %s", leases["none"])
    make_job()
    assert listed(superuser, f"{JOBS}?lease={state}") == [leases[state]]


def test_the_stage_filter_finds_that_stage_only(superuser: Client) -> None:
    clip, none, empty = make_job(), make_job(stage=None), make_job(stage="")
    make_job(stage="asr")
    assert listed(superuser, f"{JOBS}?stage=clip") == [clip.pk]
    assert listed(superuser, f"{JOBS}?stage=") == [empty.pk, none.pk]


def test_stages_on_offer_are_the_configured_and_the_unfinished(superuser: Client) -> None:
    make_job(stage="dub")
    claimed(stage="trim")
    make_job(stage="old", status="success")
    page = html(superuser, JOBS)
    offered = set(re.findall(r'href="\?stage=([^"]*)"', page))
    assert offered == {"clip", "asr", "burnin", "dub", "trim"}


def test_the_worker_filter_finds_what_the_worker_runs(superuser: Client) -> None:
    mine = claimed(worker="mine:1:a")
    claimed(worker="other:1:b")
    page = html(superuser, JOBS)
    assert set(re.findall(r'href="\?worker=([^"]*)"', page)) == {"mine%3A1%3Aa", "other%3A1%3Ab"}
    assert listed(superuser, f"{JOBS}?worker=mine%3A1%3Aa") == [mine.pk]


def test_the_filter_by_a_worker_that_is_gone_finds_nothing_rather_than_all(
    superuser: Client,
) -> None:
    make_job()
    assert listed(superuser, f"{JOBS}?worker=gone") == []


def test_filters_add_up(superuser: Client) -> None:
    make_job(status="failed", stage="asr")
    both = make_job(status="failed")
    make_job()
    assert listed(superuser, f"{JOBS}?status=failed&stage=clip") == [both.pk]


@pytest.mark.parametrize("name", ["status", "lease", "stage", "worker", "locked_by", "q"])
def test_a_value_that_cannot_be_is_turned_away(superuser: Client, name: str) -> None:
    make_job()
    assert listed(superuser, f"{JOBS}?{name}=%F0%9F%A6%84") == []
    assert superuser.get(f"{JOBS}?{name}=a%00b").headers["Location"].endswith("?e=1")


# Search and order


def test_the_search_finds_exactly_the_id(superuser: Client) -> None:
    jobs = [make_job() for _ in range(12)]
    assert listed(superuser, f"{JOBS}?q=+{jobs[0].pk}+") == [jobs[0].pk]


@pytest.mark.parametrize("term", ["abc", "1.5", "99999999999999999999999", "%27"])
def test_a_search_for_what_is_no_id_finds_nothing(superuser: Client, term: str) -> None:
    make_job()
    assert listed(superuser, f"{JOBS}?q={term}") == []


def test_the_search_takes_a_uuid(superuser: Client) -> None:
    job = OwnJob.objects.create(type="mail")
    OwnJob.objects.create(type="mail")
    assert listed(superuser, f"{list_of(OwnJob)}?q={job.pk}") == [job.pk]
    assert listed(superuser, f"{list_of(OwnJob)}?q=mail") == []


@pytest.mark.parametrize("order", ["", "?o=2", "?o=-3.1"])
def test_the_list_is_always_in_the_order_of_the_key(superuser: Client, order: str) -> None:
    jobs = [make_job(status=status) for status in ("success", "queued", "failed")]
    ordered_by = superuser.get(JOBS + order).context["cl"].queryset.query.order_by
    assert set(ordered_by) == {"-pk"}
    assert listed(superuser, JOBS + order) == [job.pk for job in reversed(jobs)]


# Large tables


@pytest.fixture
def many(superuser: Client) -> Client:
    """More jobs than are ever counted."""
    execute(
        "INSERT INTO jobs (stage, status) SELECT 'clip', 'success' FROM generate_series(1, 10100)"
    )
    execute("ANALYZE jobs")
    return superuser


def test_a_large_table_is_estimated(many: Client) -> None:
    assert "about 10,100 jobs" in text(html(many, JOBS))


def test_a_small_table_is_counted(superuser: Client) -> None:
    make_job()
    make_job()
    assert "2 jobs" in text(html(superuser, JOBS))


def test_a_filtered_list_is_counted_so_far_and_no_further(many: Client) -> None:
    assert "more than 10,000 jobs" in text(html(many, f"{JOBS}?status=success"))
    assert "0 jobs" in text(html(many, f"{JOBS}?status=failed"))


def test_a_table_that_was_never_analyzed_is_counted_so_far(superuser: Client) -> None:
    execute("TRUNCATE jobs")
    execute("INSERT INTO jobs (stage) SELECT 'clip' FROM generate_series(1, 10100)")
    assert "more than 10,000 jobs" in text(html(superuser, JOBS))


def test_pages_end_where_the_count_does(many: Client) -> None:
    assert len(listed(many, f"{JOBS}?p=100")) == 100
    assert "filters and the search reach the rest" in text(html(many, JOBS))
    assert many.get(f"{JOBS}?p=101").headers["Location"].endswith("?e=1")


def test_the_first_page_reads_the_index_of_the_key(many: Client) -> None:
    rows = many.get(JOBS).context["cl"].queryset[:100]
    assert "Index Scan Backward using jobs_pkey" in rows.explain()


def test_the_choices_are_read_through_the_partial_indexes(
    many: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Next to a sample this small, the backlog is as large as it is in a table of millions.
    monkeypatch.setattr(filters, "SAMPLED_ROWS", 100)
    execute("INSERT INTO jobs (stage) SELECT 'clip' FROM generate_series(1, 5000)")
    execute("INSERT INTO jobs (status) SELECT 'processing' FROM generate_series(1, 200)")
    execute("ANALYZE jobs")
    with CaptureQueriesContext(connection) as captured:
        html(many, JOBS)
    for word, indexes in (
        ("UNION", ["idx_jobs_status_lease", "idx_jobs_queued_due"]),
        ("DISTINCT", ["idx_jobs_status_lease"]),
    ):
        statement = next(query["sql"] for query in captured if word in query["sql"])
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {statement}")
            plan = str(cursor.fetchall())
        assert "Seq Scan" not in plan
        assert all(index in plan for index in indexes)


@pytest.mark.parametrize(
    "query",
    ["", "?status=failed", "?lease=expired", "?stage=clip", "?worker=w", "?q=1", "?_facets=True"],
)
def test_nothing_is_counted_or_compared_over_the_whole_table(many: Client, query: str) -> None:
    with CaptureQueriesContext(connection) as captured:
        html(many, JOBS + query)
    over_jobs = [q["sql"] for q in captured if 'FROM "jobs"' in q["sql"]]
    assert over_jobs
    for statement in over_jobs:
        assert "COUNT(" not in statement or "LIMIT 10001" in statement, statement
        assert "DISTINCT" not in statement or "'processing'" in statement, statement


@pytest.mark.parametrize("model", [Job, AsrJob, OwnJob])
def test_the_number_of_statements_does_not_grow_with_the_rows(
    superuser: Client, model: type[Job]
) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            html(superuser, list_of(model))
        return len(captured)

    model.objects.create(stage="clip")
    one = statements()
    for _ in range(20):
        model.objects.create(stage="clip")
    jobreaper.claim_next(model, 10)
    assert statements() == one <= 8
