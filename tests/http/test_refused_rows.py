"""What the tick and the health say where the database refuses a row."""

import pytest
from django.test import Client

from jobreaper import enqueue, job_handler
from tests.refusals import OF_COUNTERS, WAYS, refusing
from tests.rows import Rows, Sql, ago


def test_no_answer_shows_the_row(
    cron: Client, sql: Sql, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("mail")
    def send(job: object, lease: object) -> None: ...

    enqueue("mail", {"card": "s3cret"})
    jobs.plant_expired(type="mail", payload='{"card": "s3cret"}')
    jobs.plant(type="mail", payload='{"card": "s3cret"}', next_earliest_run_at=ago(5))
    sql("ALTER TABLE jobreaper_jobs ADD CONSTRAINT kept CHECK (lease_epoch = 0) NOT VALID")
    try:
        answers = [cron.post("/api/jobs/tick"), Client().get("/api/jobs/health")]
    finally:
        sql("ALTER TABLE jobreaper_jobs DROP CONSTRAINT kept")
    said = "".join(answer.content.decode() for answer in answers) + caplog.text
    assert "kept" in said
    assert "s3cret" not in said
    assert "Failing row" not in said


@pytest.mark.parametrize("way", WAYS | OF_COUNTERS)
def test_a_tick_runs_the_others_around_a_queued_row_that_cannot_be_written(
    way: str, cron: Client, sql: Sql, jobs: Rows
) -> None:
    @job_handler("mail")
    def send(job: object, lease: object) -> None: ...

    bad = enqueue("mail", {"bad": True}, priority=9)
    good = [enqueue("mail").pk for _ in range(3)]
    with refusing(sql, "jobreaper_jobs", way):
        answer = cron.post("/api/jobs/tick")
    assert answer.json() == {"ok": True, "claimed": 3, "succeeded": 3, "failed": 0}
    assert {jobs.row(key)["status"] for key in good} == {"success"}
    assert jobs.row(bad.pk)["status"] == "queued"
