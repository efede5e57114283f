"""The health: for probes, without a login."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings

from jobreaper import reap
from jobreaper.http.views import UNSAID
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
    assert "no-store" in answer["Cache-Control"]
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
    assert answer.json()["error"] == UNSAID


def test_nobody_learns_host_and_role_from_it(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "USER", "payments_role")
        answer = health()
    assert answer.status_code == 503
    assert answer.json()["error"] == UNSAID
    assert "payments_role" in caplog.text


BAD = "s3cret-value"


@pytest.mark.parametrize("setting", ["REAPER_INTERVAL_SEC", "TICK_TOKENS", "DEFAULT_LEASE_SEC"])
@pytest.mark.parametrize("ask", ["health", "tick", "tick with a token"])
def test_nobody_learns_what_a_setting_is(
    setting: str, ask: str, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(JOBREAPER={setting: BAD}):
        if ask == "health":
            answer = health()
        else:
            token = {"authorization": "Bearer x"} if "token" in ask else {}
            answer = Client().post("/api/jobs/tick", headers=token)
    assert answer.status_code == 503
    assert answer.json()["ok"] is False
    assert BAD not in answer.content.decode()
    assert setting not in answer.content.decode()
    assert setting in caplog.text


@pytest.mark.parametrize("table", ["jobreaper_passes", "jobreaper_jobs", "asr_jobs"])
def test_nobody_learns_what_a_table_is_called(table: str, sql: Sql) -> None:
    reap()
    sql(f"ALTER TABLE {table} RENAME TO away")
    try:
        answers = [health(), Client().post("/api/jobs/tick")]
    finally:
        sql(f"ALTER TABLE away RENAME TO {table}")
    assert [answer.status_code for answer in answers] == [503, 401]
    assert all(table not in answer.content.decode() for answer in answers)


def test_a_session_that_cannot_be_read_tells_no_table(sql: Sql, jobs: Rows) -> None:
    client = Client()
    client.cookies["sessionid"] = "x" * 32
    sql("ALTER TABLE django_session RENAME TO away")
    try:
        answer = client.post("/api/jobs/tick")
    finally:
        sql("ALTER TABLE away RENAME TO django_session")
    assert (answer.status_code, answer.json()["error"]) == (503, UNSAID)
