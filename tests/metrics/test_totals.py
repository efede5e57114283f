"""Totals: rows that are added, folded and read at the same time."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import override_settings

from jobreaper import LeaseLost, claim, reap
from jobreaper.policies import MOST_STAGES, OTHER_STAGE
from jobreaper.reaper import totals
from jobreaper.states import Counted
from project.media.models import Job
from tests.metrics.page import Sql, scrape
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

NO_WAITING = 'SET lock_timeout = "100ms"'


def count(sql: Sql, stage: str = "", n: int = 1, *, table: str = "jobs") -> None:
    sql(
        """INSERT INTO jobreaper_totals (name, "table", stage, count, microseconds)
           VALUES ('requeues', %s, %s, %s, 7)""",
        table,
        stage,
        n,
    )


def read() -> dict[tuple[str, str], tuple[int, int]]:
    sums = totals.read(connection)
    return {(s.table, s.stage): (s.count, s.microseconds) for s in sums}


def test_a_fold_changes_no_sum_and_leaves_a_row_a_total(sql: Sql) -> None:
    for stage, n in (("clip", 3), ("", 2), ("clip", 4)):
        count(sql, stage, n)
    count(sql, "clip", 5, table="asr_jobs")
    latest = sql("SELECT max(last_at) AS at FROM jobreaper_totals WHERE stage = 'clip'")
    before = read()
    totals.fold(connection)
    assert (
        read()
        == before
        == {
            ("jobs", "clip"): (7, 14),
            ("jobs", ""): (2, 7),
            ("asr_jobs", "clip"): (5, 7),
        }
    )
    assert len(sql("TABLE jobreaper_totals")) == 3
    assert sql("SELECT max(last_at) AS at FROM jobreaper_totals WHERE stage = 'clip'") == latest


def test_rows_that_are_not_committed_are_left_to_the_next_fold(
    sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    count(sql)
    count(sql)
    second_connection.execute(
        """INSERT INTO jobreaper_totals (name, "table") VALUES ('requeues', 'jobs')"""
    )
    totals.fold(connection)
    assert read() == {("jobs", ""): (2, 14)}
    second_connection.commit()
    assert read() == {("jobs", ""): (3, 14)}
    totals.fold(connection)
    assert read() == {("jobs", ""): (3, 14)}
    assert len(sql("TABLE jobreaper_totals")) == 1


def test_a_fold_passes_over_the_rows_of_another_fold(
    sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    for _ in range(4):
        count(sql)
    second_connection.execute("SELECT FROM jobreaper_totals ORDER BY id LIMIT 2 FOR UPDATE")
    totals.fold(connection)
    assert read() == {("jobs", ""): (4, 28)}
    assert len(sql("TABLE jobreaper_totals")) == 3
    second_connection.rollback()
    totals.fold(connection)
    assert read() == {("jobs", ""): (4, 28)}
    assert len(sql("TABLE jobreaper_totals")) == 1


def test_while_four_add_and_two_fold_no_sum_goes_down_and_none_is_lost(dsn: str) -> None:
    adding = threading.Event()
    adding.set()
    added = [0] * 4
    seen: list[int] = []

    def add(n: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            for _ in range(300):
                client.execute(
                    """INSERT INTO jobreaper_totals (name, "table") VALUES ('requeues', 'jobs')"""
                )
                added[n] += 1

    def fold() -> None:
        try:
            while adding.is_set():
                totals.fold(connection)
        finally:
            connection.close()

    def watch() -> None:
        try:
            while adding.is_set():
                seen.append(sum(n for n, _ in read().values()))
        finally:
            connection.close()

    adders = [threading.Thread(target=add, args=[n]) for n in range(4)]
    others = [threading.Thread(target=work) for work in (fold, fold, watch)]
    for thread in (*adders, *others):
        thread.start()
    for thread in adders:
        thread.join()
    adding.clear()
    for thread in others:
        thread.join()

    assert read() == {("jobs", ""): (sum(added), 0)}
    assert sum(added) == 1200
    assert len(seen) > 5
    assert seen == sorted(seen)


@pytest.fixture
def open_reap(jobs: Rows, second_connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A pass that has reaped and counted, and does not commit."""
    for _ in range(3):
        jobs.plant_expired(stage="clip")
    reap()
    pk = jobs.plant_expired(stage="clip")
    done, go_on = threading.Event(), threading.Event()

    def reaper() -> None:
        try:
            with transaction.atomic():
                assert reap([Job]).requeued == 1
                done.set()
                go_on.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=reaper)
    thread.start()
    assert done.wait(20)
    yield
    go_on.set()
    thread.join()
    assert jobs.row(pk)["status"] == "queued"


def test_nobody_waits_for_anybody_to_count(open_reap: None, jobs: Rows, sql: Sql) -> None:
    with connection.cursor() as cursor:
        cursor.execute(NO_WAITING)
    # A worker that finishes, one whose write is rejected, another reaper, and a scrape.
    lease = claim(Job, jobs.plant())
    assert lease is not None
    lease.finish()
    stale = claim(Job, jobs.plant(stage="burnin"))
    assert stale is not None
    jobs.set(stale.pk, lease_expires_at=ago(1))
    assert reap([Job]).requeued_ids["jobs"] == [stale.pk]
    with pytest.raises(LeaseLost):
        stale.finish()
    page = scrape()
    assert page.value("jobreaper_up") == 1
    assert page.by("table", of="jobreaper_stale_writes_total") == {"jobs": 1}
    assert page.by("stage", of="reaper_requeues_total") == {"clip": 3, "burnin": 1}


def test_what_an_open_pass_has_counted_is_seen_once_it_commits(
    jobs: Rows, sql: Sql, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("open_reap")
    assert scrape().by("stage", of="reaper_requeues_total") == {"clip": 3}


class TestStages:
    """A stage for each job must not be a series for each job."""

    def test_the_first_few_stages_keep_their_name_and_the_others_share_one(self, sql: Sql) -> None:
        for n in range(MOST_STAGES + 20):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        kept = {f"stage-{n:03}" for n in range(MOST_STAGES)}
        assert set(stages()) == {*kept, OTHER_STAGE}
        assert stages()[OTHER_STAGE] == 20
        count(sql, "stage-000")
        count(sql, "stage-069")
        assert stages()["stage-000"] == 2
        assert stages()[OTHER_STAGE] == 21

    def test_stages_with_a_policy_always_keep_their_name(self, sql: Sql) -> None:
        for n in range(MOST_STAGES + 1):
            count(sql, f"stage-{n:03}")
        count(sql, "burnin")
        count(sql, "")
        assert stages() == {"burnin": 1, "": 1}, "they wait for no fold"
        totals.fold(connection)
        assert stages()["burnin"] == 1
        assert stages()[""] == 1
        assert stages()[OTHER_STAGE] == 1

    def test_a_stage_that_loses_its_policy_keeps_its_name(self, sql: Sql) -> None:
        count(sql, "burnin")
        for n in range(MOST_STAGES + 1):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        with override_settings(JOBREAPER={}):
            totals.fold(connection)
            assert (stages()["burnin"], stages()[OTHER_STAGE]) == (1, 1)

    def test_one_table_does_not_use_up_the_names_of_another(self, sql: Sql) -> None:
        for n in range(MOST_STAGES + 1):
            count(sql, f"stage-{n:03}")
        count(sql, "late", table="asr_jobs")
        totals.fold(connection)
        assert ("asr_jobs", "late") in read()

    def test_a_fold_keeps_the_names_and_the_table_small(self, sql: Sql) -> None:
        for round_ in range(3):
            for n in range(MOST_STAGES + 50):
                count(sql, f"stage-{n if round_ == 0 else 99 - n:03}")
            totals.fold(connection)
            assert stages() == {
                **{f"stage-{n:03}": round_ + 1 for n in range(MOST_STAGES)},
                OTHER_STAGE: 50 * (round_ + 1),
            }
            # Those without a name are known by the fold after the one that gave the last name.
            rows = len(sql("TABLE jobreaper_totals"))
            assert rows == MOST_STAGES + (1 if round_ else 50)
        assert len(sql("TABLE jobreaper_stages")) == MOST_STAGES

    def test_a_fold_that_may_not_touch_the_oldest_rows_gives_no_name_away(
        self, sql: Sql, second_connection: psycopg.Connection[Any]
    ) -> None:
        for n in range(MOST_STAGES + 10):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        before = read()
        second_connection.execute("SELECT FROM jobreaper_totals FOR UPDATE")
        for n in reversed(range(MOST_STAGES + 10)):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        second_connection.rollback()
        totals.fold(connection)
        assert read() == {key: (2 * n, 2 * us) for key, (n, us) in before.items()}

    def test_a_stage_that_was_counted_first_and_committed_last_takes_no_name_away(
        self, sql: Sql, second_connection: psycopg.Connection[Any]
    ) -> None:
        second_connection.execute(
            """INSERT INTO jobreaper_totals (name, "table", stage)
               VALUES ('requeues', 'jobs', 'late')"""
        )
        for n in range(MOST_STAGES + 2):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        before = stages()
        second_connection.commit()
        for _ in range(2):
            assert stages() == {**before, OTHER_STAGE: 3}
            totals.fold(connection)

    def test_a_stage_is_shown_only_when_it_is_known_whether_it_has_a_name(self, sql: Sql) -> None:
        for n in range(MOST_STAGES - 1):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        count(sql, "a")
        count(sql, "b")
        assert not {"a", "b", OTHER_STAGE} & set(stages())
        totals.fold(connection)
        assert (stages()["a"], stages()[OTHER_STAGE]) == (1, 1)

    def test_two_folds_at_once_give_no_more_names_than_there_are(self, dsn: str) -> None:
        start = threading.Barrier(4)
        seen: list[dict[str, int]] = []

        def add_and_fold(worker: int) -> None:
            try:
                with psycopg.connect(dsn, autocommit=True) as client:
                    start.wait()
                    for n in range(40):
                        client.execute(
                            """INSERT INTO jobreaper_totals (name, "table", stage)
                               VALUES ('requeues', 'jobs', %s)""",
                            [f"{worker}-{n}"],
                        )
                        totals.fold(connection)
                        if worker == 0:
                            seen.append(stages())
            finally:
                connection.close()

        threads = [threading.Thread(target=add_and_fold, args=[n]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        totals.fold(connection)
        seen.append(stages())
        for before, after in pairwise(seen):
            assert all(after.get(stage, 0) >= n for stage, n in before.items())
        assert sum(seen[-1].values()) == 160
        assert len(seen[-1]) == MOST_STAGES + 1

    def test_while_a_pass_in_an_open_transaction_is_not_committed_others_give_names(
        self, open_reap: None, jobs: Rows
    ) -> None:
        jobs.plant_expired(stage="new")
        reap([Job])
        assert stages()["new"] == 1

    def test_the_page_has_no_more_series_than_names(self, sql: Sql) -> None:
        for n in range(500):
            count(sql, f"stage-{n:03}")
        totals.fold(connection)
        labels = {dict(key)["stage"] for key in scrape().samples["reaper_requeues_total"]}
        known = len(totals.known_stages())
        assert len(labels) == MOST_STAGES + known + 1


def stages() -> dict[str, int]:
    return {stage: n for (_, stage), (n, _) in read().items()}


def test_a_pass_folds(jobs: Rows, sql: Sql) -> None:
    for _ in range(10):
        count(sql, "clip")
    reap([Job])
    rows = sql("SELECT count FROM jobreaper_totals WHERE name = %s", Counted.REQUEUES)
    assert [row["count"] for row in rows] == [10]


@pytest.fixture
def no_fold(sql: Sql) -> Iterator[None]:
    """A table of totals that takes new rows and refuses to have one changed."""
    sql(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'not now'; END $$"""
    )
    sql(
        """CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON jobreaper_totals
           FOR EACH ROW EXECUTE FUNCTION refuse()"""
    )
    yield
    sql("DROP FUNCTION refuse() CASCADE")


def test_a_pass_that_cannot_fold_reaps_all_the_same_and_says_so(
    no_fold: None, jobs: Rows, sql: Sql
) -> None:
    told = []
    for _ in range(2):
        jobs.plant_expired(stage="clip")
        result = reap([Job])
        assert result.requeued == 1
        told.append(result.all_errors)
    # The first pass leaves nothing to fold.
    assert told == [[], ["the totals could not be folded: not now"]]
    assert len(sql("SELECT id FROM jobreaper_totals WHERE name = %s", Counted.REQUEUES)) == 2
    assert read()["jobs", "clip"][0] == 2
