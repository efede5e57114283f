"""Times that PostgreSQL stores and Python has not: they keep nobody from reading their row."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.utils import timezone

from jobreaper import claim, mark_success, pause, reap
from jobreaper.control import paused
from jobreaper.db import fetch
from jobreaper.db.times import EARLIEST, LATEST
from jobreaper.models import Job as OwnJob
from jobreaper.tables import refused, table_of
from project.media.models import Job
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

TIMES = {
    "-infinity": EARLIEST,
    "4000-01-01 BC": EARLIEST,
    "infinity": LATEST,
    "20000-01-01": LATEST,
    "2026-01-31 12:00+02": datetime(2026, 1, 31, 10, tzinfo=UTC),
}


@pytest.mark.parametrize("text", TIMES)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Adak"])
def test_what_is_fetched_is_the_nearest_time_that_there_is(text: str, zone: str) -> None:
    [(read,)] = fetch(connection, "SELECT %(text)s::timestamptz", {"text": text})
    assert read == TIMES[text]
    with timezone.override(zone):
        timezone.localtime(read)


def test_a_pause_without_end_and_a_row_left_out_for_ever_can_be_read(sql: Sql) -> None:
    pause("clip", model=Job)
    sql("UPDATE jobreaper_pauses SET at = 'infinity'")
    [found] = paused(Job)
    assert (found.name, found.at) == ("clip", LATEST)
    jobs = Rows(sql)
    key = jobs.plant_expired()
    sql(
        'INSERT INTO jobreaper_refused_rows ("table", verb, key, error, next_try_at)'
        " VALUES ('jobs', 'reap', %s, 'by hand', 'infinity')",
        str(key),
    )
    result = reap([Job], hold=False)
    assert (result.all_errors, result.requeued) == ([], 0)
    [row] = refused.of(connection, [table_of(Job)])[table_of(Job)].rows
    assert (row.key, row.next_try_at) == (str(key), LATEST)


def test_a_job_whose_times_have_no_end_is_ended_by_its_key(sql: Sql) -> None:
    jobs = Rows(sql, "jobreaper_jobs")
    key = jobs.plant(created_at="infinity")
    lease = claim(OwnJob, key)
    assert lease is not None
    mark_success(key, epoch=lease.epoch)
    assert jobs.event_types(key) == ["job:finished"]
