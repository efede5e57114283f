"""Old rows that the database does not let go: they keep no other from being deleted."""

from collections.abc import Iterator

import pytest
from django.test import override_settings

from jobreaper import prune
from jobreaper.control.retention import MOST_KEPT
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

DAY = 86_400
WHEN = {
    "at once": "CREATE TRIGGER keep BEFORE DELETE ON {0} FOR EACH ROW",
    "at the commit": "CREATE CONSTRAINT TRIGGER keep AFTER DELETE ON {0}"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
    "without an error": "CREATE TRIGGER keep BEFORE DELETE ON {0} FOR EACH ROW",
}
SUPPRESSED = "a trigger or a rule suppressed the write of 1 row(s)"


@pytest.fixture
def keep(sql: Sql) -> Iterator[None]:
    sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF TG_ARGV[0] = 'softly' THEN RETURN NULL; END IF;"
        " RAISE EXCEPTION 'evidence'; END $$"
    )
    yield
    sql("DROP FUNCTION keep CASCADE")


def plant(jobs: Rows, n: int, **columns: object) -> list[object]:
    return [
        jobs.plant(status="success", finished_at=ago((100 - i / 1000) * DAY), **columns)
        for i in range(n)
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
@pytest.mark.parametrize("when", WHEN)
def test_a_job_that_must_not_be_deleted_stays_and_the_others_go(
    when: str, batch_size: int, keep: None, jobs: Rows, sql: Sql
) -> None:
    kept = plant(jobs, 2, stage="kept")
    plant(jobs, 10)
    kept += plant(jobs, 1, stage="kept")
    call, said = ("keep('softly')", SUPPRESSED) if "without" in when else ("keep()", "evidence")
    sql(f"{WHEN[when]} WHEN (OLD.stage = 'kept') EXECUTE FUNCTION {call}".format("jobreaper_jobs"))
    done = prune(batch_size=batch_size)
    assert done.deleted["jobreaper_jobs"] == 10
    assert done.errors == [f"jobreaper_jobs: 3 rows could not be deleted: {said}"]
    assert jobs.all().keys() == set(kept)


@pytest.mark.parametrize("call", ["keep()", "keep('softly')"])
def test_an_event_that_must_not_be_deleted_stays_too(
    call: str, keep: None, jobs: Rows, sql: Sql
) -> None:
    for n in range(5):
        sql(
            "INSERT INTO job_events (job_id, data, at) VALUES (%s, '{}', now() + %s)",
            str(n),
            ago((400 + n) * DAY),
        )
    when = WHEN["at once"].format("job_events")
    sql(f"{when} WHEN (OLD.job_id = '2') EXECUTE FUNCTION {call}")
    assert prune().deleted["job_events"] == 4
    assert [row["job_id"] for row in sql("SELECT job_id FROM job_events")] == ["2"]


def test_a_table_that_lets_nothing_go_is_told_once(keep: None, jobs: Rows, sql: Sql) -> None:
    plant(jobs, 3)
    sql(
        "CREATE TRIGGER keep BEFORE DELETE ON jobreaper_jobs"
        " FOR EACH STATEMENT EXECUTE FUNCTION keep()"
    )
    assert prune().errors == ["jobreaper_jobs: evidence"]
    assert len(jobs.all()) == 3


@override_settings(JOBREAPER={"RETENTION": {"success": "1d"}})
def test_a_prune_gives_up_where_row_after_row_stays(keep: None, jobs: Rows, sql: Sql) -> None:
    plant(jobs, MOST_KEPT + 5)
    sql(WHEN["at once"].format("jobreaper_jobs") + " EXECUTE FUNCTION keep()")
    assert prune().errors == ["jobreaper_jobs: evidence"]
