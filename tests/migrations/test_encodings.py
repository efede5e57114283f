"""A database in an encoding of old: what we send it can read, and no error's words keep a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.db import DataError, connection
from psycopg.sql import Composed
from pytest_django import DjangoDbBlocker

import jobreaper
from jobreaper import cancel, claim, claim_next, enqueue, fail, hold, pause, reap
from jobreaper.control.retention import prune
from jobreaper.models import Job as QueueJob
from jobreaper.models import Pause
from project.media.models import Job
from tests.committed import transactional_db, what_empties
from tests.migrations.conftest import Sql, empty_database, migrate_to

__all__ = ["transactional_db"]

pytestmark = pytest.mark.slow

WORDS = "Ошибка – žluť ❌"
STORED = {
    "UTF8": WORDS,
    "LATIN1": r"\u041e\u0448\u0438\u0431\u043a\u0430 \u2013 \u017elu\u0165 \u274c",
    "WIN1251": r"Ошибка – \u017elu\u0165 \u274c",
    "EUC_JP": r"Ошибка \u2013 žluť \u274c",
    "SQL_ASCII": WORDS,
}

PACKAGE = Path(jobreaper.__file__).parent


@pytest.fixture(scope="module", params=STORED)
def encoding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def emptying(
    encoding: str, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Composed]:
    """What empties the database of this encoding, which has every table of ours."""
    with django_db_blocker.unblock(), empty_database(encoding):
        migrate_to()
        empties = what_empties()
        with django_db_blocker.block():
            yield empties


@pytest.fixture
def stored(encoding: str, transactional_db: None) -> str:
    """What becomes of the words."""
    return STORED[encoding]


def reasons(model: Any) -> list[str]:
    return [*model.objects.order_by("pk").values_list("fail_reason", flat=True)]


def test_jobs_fail_and_end_with_any_words(stored: str) -> None:
    made = [Job.objects.create(max_attempts=1) for _ in range(4)]
    with pytest.raises(ValueError, match="Ошибка"), hold(Job, made[0].pk):
        raise ValueError(WORDS)
    lease = claim(Job, made[1].pk, worker=f"{WORDS}:1:0")
    assert lease is not None
    lease.fail(WORDS, WORDS, retry=False)
    fail(Job, [made[2].pk], by=WORDS, reason=WORDS)
    [lease] = claim_next(Job, 1, stages=None)
    lease.fail(ValueError(WORDS))
    assert reasons(Job) == [stored] * 4
    assert {job.status for job in Job.objects.all()} == {"failed"}


def test_operators_and_passes_write_what_they_have_to(stored: str) -> None:
    job = enqueue("mail")
    assert pause("mail", by=WORDS, reason=WORDS)
    assert [*Pause.objects.values_list("by", "reason")] == [(stored, stored)]
    assert cancel(QueueJob, [job.pk], by=WORDS, reason=WORDS) == [job.pk]
    running = Job.objects.create()
    assert claim(Job, running.pk) is not None
    Job.objects.update(lease_expires_at="2020-01-01 00:00Z")
    assert reap().all_errors == []
    assert Job.objects.get().reap_count == 1
    assert prune().errors == []


def test_a_stage_that_the_database_cannot_hold_has_no_jobs(stored: str) -> None:
    Job.objects.create(stage="clip")
    assert claim_next(Job, stages=[WORDS]) == []
    assert [lease.job.stage for lease in claim_next(Job, stages=[WORDS, "clip"])] == ["clip"]


def test_a_job_that_cannot_be_stored_is_its_makers_error(stored: str, encoding: str) -> None:
    if stored == WORDS:
        assert enqueue("mail", {"to": WORDS}).payload == {"to": WORDS}
    else:
        with pytest.raises(DataError):
            enqueue("mail", {"to": WORDS})


def test_the_functions_are_installed_and_fail_a_job(stored: str, sql: Sql) -> None:
    key = Job.objects.create(max_attempts=1).pk
    with connection.cursor() as cursor:
        cursor.execute("SELECT lease_epoch FROM jobs_claim('w', 1)")
        [epoch] = cursor.fetchone()
        cursor.execute("SELECT jobs_fail(%s, 'w', %s, 'E7', %s)", [key, epoch, stored])
    assert reasons(Job) == [stored]


def test_a_check_tells_of_it(stored: str, encoding: str) -> None:
    found = run_checks(tags=[Tags.database], databases=["default"])
    told = [message for message in found if message.id == "jobreaper.W022"]
    assert [encoding in message.msg for message in told] == [True] * (encoding != "UTF8")


@pytest.mark.parametrize(
    "folder", [PACKAGE / "sql", Path(__file__).parents[1] / "golden"], ids=lambda path: path.name
)
def test_statements_are_in_ascii_comments_included(folder: Path) -> None:
    found = [path.name for path in folder.rglob("*.sql") if not path.read_text().isascii()]
    assert found == []
    assert [*folder.rglob("*.sql")]
