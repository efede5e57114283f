"""A reaper in SQL, whose role row-level security keeps from seeing every job."""

from collections.abc import Iterator

import pytest

from tests.rows import Rows, Sql

SAID = "row-level security hides rows of jobs from the role"


@pytest.fixture
def limited(as_before: None, role: str, jobs: Rows, sql: Sql) -> Iterator[str]:
    """The session's role may do anything with the tables, and sees no job of another stage."""
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        sql(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {role}")
    sql("ALTER TABLE jobs ENABLE ROW LEVEL SECURITY")
    sql(f"CREATE POLICY theirs ON jobs TO {role} USING (stage = 'theirs')")
    sql(f"SET ROLE {role}")
    yield role
    sql("RESET ROLE")
    sql("DROP POLICY theirs ON jobs")
    sql("ALTER TABLE jobs DISABLE ROW LEVEL SECURITY")


def said(sql: Sql) -> list[str]:
    rows = sql("SELECT error FROM jobreaper_passes ORDER BY id")
    return [row["error"] for row in rows if row["error"] is not None]


def test_it_reaps_what_it_sees_and_says_that_there_may_be_more(
    jobs: Rows, sql: Sql, limited: str
) -> None:
    sql("RESET ROLE")
    theirs, other = jobs.plant_expired(stage="theirs"), jobs.plant_expired(stage="other")
    sql(f"SET ROLE {limited}")
    [row] = sql("SELECT * FROM jobs_reap()")
    assert row["job_id"] == str(theirs)
    [error] = said(sql)
    name = limited.strip('"')
    assert error.startswith(f"{SAID} '{name}': give the role BYPASSRLS")
    sql("RESET ROLE")
    assert jobs.row(other)["status"] == "processing"
    # It was no clean scan, as metrics and alerts count them.
    assert not sql("SELECT 1 FROM jobreaper_totals WHERE name = 'clean_scans'")
    assert [row["job_id"] for row in sql("SELECT * FROM jobs_reap()")] == [str(other)]
    assert len(said(sql)) == 1


def test_a_role_that_sees_every_row_is_told_nothing(jobs: Rows, sql: Sql, limited: str) -> None:
    sql(f"RESET ROLE; CREATE POLICY every_job ON jobs TO {limited} USING (true)")
    lost = jobs.plant_expired(stage="other")
    sql(f"SET ROLE {limited}")
    try:
        assert [row["job_id"] for row in sql("SELECT * FROM jobs_reap()")] == [str(lost)]
        assert said(sql) == []
    finally:
        sql("RESET ROLE; DROP POLICY every_job ON jobs")
