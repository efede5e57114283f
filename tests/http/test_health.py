"""The health: for probes, without a login."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings

from jobreaper import reap
from tests.metrics.page import scrape
from tests.rows import Rows, Sql, ago

URL = "/api/jobs/health"

pytestmark = pytest.mark.usefixtures("transactional_db")


def health(query: str = "") -> Any:
    return Client().get(URL + query)


def passed(sql: Sql, seconds_ago: float, error: str | None = None) -> None:
    sql(
        "INSERT INTO jobreaper_passes (started_at, trigger, reaper, counts, error)"
        " VALUES (statement_timestamp() + %s, 'beat', 'r', '{}', %s)",
        ago(seconds_ago),
        error,
    )


def test_while_passes_come_it_is_well(jobs: Rows) -> None:
    reap()
    answer = health()
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    found = answer.json()
    assert found.keys() == {"ok", "last_pass_age_sec", "oldest_due_age_sec"}
    assert found["ok"] is True
    assert 0 <= found["last_pass_age_sec"] < 30
    assert found["oldest_due_age_sec"] is None


@pytest.mark.parametrize(("age", "status"), [(170, 200), (181, 503)])
def test_three_missed_passes_are_not_well(age: float, status: int, sql: Sql) -> None:
    passed(sql, age)
    answer = health()
    assert answer.status_code == status
    assert answer.json()["ok"] is (status == 200)
    assert age <= answer.json()["last_pass_age_sec"] < age + 30


def test_the_interval_is_the_settings(sql: Sql) -> None:
    passed(sql, 170)
    with override_settings(JOBREAPER={"REAPER_INTERVAL_SEC": 10}):
        assert health().status_code == 503


def test_without_a_pass_ever_it_is_not_well() -> None:
    answer = health()
    assert answer.status_code == 503
    assert answer.json() == {"ok": False, "last_pass_age_sec": None, "oldest_due_age_sec": None}


def test_a_pass_that_went_wrong_is_none(sql: Sql) -> None:
    passed(sql, 500)
    passed(sql, 5, "relation does not exist")
    assert health().status_code == 503


def test_the_oldest_due_job_of_any_table_is_told(sql: Sql, jobs: Rows) -> None:
    reap()
    jobs.plant(next_earliest_run_at=ago(100), created_at=ago(1000))
    Rows(sql, "jobs").plant(next_earliest_run_at=ago(200), created_at=ago(1000))
    jobs.plant(next_earliest_run_at=ago(-100), created_at=ago(1000))
    jobs.plant()
    answer = health()
    assert answer.status_code == 200
    assert 200 <= answer.json()["oldest_due_age_sec"] < 230
    assert health("?max_due_age_sec=300").status_code == 200
    assert health("?max_due_age_sec=150").status_code == 503


@pytest.mark.parametrize(
    ("times", "age"),
    [
        pytest.param({"created_at": ago(500)}, 500, id="never had a time"),
        pytest.param({"next_earliest_run_at": "2000-01-01"}, 0, id="had an old time when made"),
        pytest.param(
            {"next_earliest_run_at": "-infinity", "created_at": ago(500)}, 500, id="at once"
        ),
        pytest.param(
            {
                "created_at": ago(1000),
                "next_earliest_run_at": ago(900),
                "last_heartbeat_at": ago(40),
            },
            40,
            id="was tried",
        ),
    ],
)
def test_a_job_waits_since_the_metrics_say_so(
    times: dict[str, Any], age: float, jobs: Rows
) -> None:
    reap()
    jobs.plant(**times)
    told = health().json()["oldest_due_age_sec"]
    metric = scrape().value("jobreaper_oldest_due_age_seconds", table="jobreaper_jobs")
    assert age <= told < age + 30
    assert told <= metric < told + 30
    assert health("?max_due_age_sec=450").status_code == (503 if age > 450 else 200)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", ""])
def test_an_age_that_is_none_is_refused(text: str) -> None:
    assert health(f"?max_due_age_sec={text}").status_code == 400


def test_head_is_enough(sql: Sql) -> None:
    passed(sql, 1)
    assert Client().head(URL).status_code == 200


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_it_is_only_read(method: str) -> None:
    answer = getattr(Client(), method)(URL)
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")


def test_a_database_that_does_not_answer_is_not_well(sql: Sql, jobs: Rows) -> None:
    sql("ALTER TABLE jobreaper_passes RENAME TO away")
    try:
        answer = health()
    finally:
        sql("ALTER TABLE away RENAME TO jobreaper_passes")
    assert answer.status_code == 503
    assert answer.json()["ok"] is False
    assert answer.json()["last_pass_age_sec"] is None
    assert "does not exist" in answer.json()["error"]


def test_nobody_learns_host_and_role_from_it(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "USER", "payments_role")
        answer = health()
    assert answer.status_code == 503
    assert answer.json()["error"] == "the database did not answer; the log says why"
    assert "payments_role" in caplog.text
