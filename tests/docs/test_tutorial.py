"""The tutorial, followed to the letter on a table with rows in it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.docs import markdown
from tests.docs.site import COMMAND_SEC, Site

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TUTORIAL = markdown.page("tutorial")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "media")
    yield site
    site.leave()


def migrate_to_the_model(site: Site) -> str:
    """Follow the tutorial up to the command that migrates, and return it."""
    site.follow(markdown.section(TUTORIAL, "The table before"))
    site.run("python manage.py makemigrations media")
    site.run("python manage.py migrate")
    site.sql("INSERT INTO jobs (status) VALUES ('processing'), ('success')")

    site.add("mysite/settings.py", 'INSTALLED_APPS += ["jobreaper"]\n')
    site.follow(markdown.section(TUTORIAL, "Two: the model"))
    three = markdown.section(TUTORIAL, "Three: the migrations")
    site.follow(three)
    make, check, migrate, _ = markdown.commands(three)
    site.run(make)
    site.run(check)
    return migrate


def test_a_migration_that_was_interrupted_goes_on_when_it_is_run_again(site: Site) -> None:
    migrate = migrate_to_the_model(site)
    [again] = markdown.commands(markdown.section(TUTORIAL, "When it was interrupted"))
    invalid = "SELECT 1 FROM pg_index WHERE indrelid = 'jobs'::regclass AND NOT indisvalid"

    with psycopg.connect(site.conninfo) as older:
        older.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        older.execute("SELECT 1")
        build = site.start(migrate)
        site.await_row(invalid)
        build.send_signal(signal.SIGINT)
        build.wait()
    assert site.sql(invalid)
    site.run(again)

    indexes = site.sql("SELECT 1 FROM pg_index WHERE indrelid = 'jobs'::regclass AND indisvalid")
    assert len(indexes) == 3
    assert not site.sql(invalid)
    site.run("python manage.py makemigrations --check --dry-run")
    changes = site.run("python manage.py sqlmigrate media 0003")
    assert "ALTER" not in changes


def test_rows_from_before_are_left_alone_until_somebody_gives_them_back(site: Site) -> None:
    site.run(migrate_to_the_model(site))
    site.follow(markdown.section(TUTORIAL, "Five: the worker"))
    [dead] = site.sql("SELECT id FROM jobs WHERE status = 'processing'")
    [fresh] = site.sql("INSERT INTO jobs (stage) VALUES ('clip') RETURNING id")

    assert "nothing to reap" in site.run("python manage.py reap")
    for block in markdown.blocks(markdown.section(TUTORIAL, "Four: old code on the new table")):
        site.add("by_hand.py", block.code.replace("[2]", f"[{dead['id']}]"))
        printed = site.run("python manage.py shell -v 0 -c 'import by_hand'")
        assert block.code.find("stuck") == -1 or printed.startswith(f"{dead['id']} ")

    worker = site.start("python manage.py run_clips")
    site.await_row("SELECT 1 FROM jobs HAVING bool_and(status = 'success')")
    worker.terminate()
    assert worker.wait(COMMAND_SEC) == 0
    [done] = site.sql(f"SELECT payload FROM jobs WHERE id = {fresh['id']}")
    assert done["payload"] == {"output": f"clip-{fresh['id']}-1.mp4"}


def test_a_worker_that_is_told_to_stop_gives_its_job_back(site: Site) -> None:
    site.run(migrate_to_the_model(site))
    site.follow(markdown.section(TUTORIAL, "Five: the worker"))
    site.sql("INSERT INTO jobs (stage) VALUES ('clip')")
    worker = site.start("python manage.py run_clips")
    site.await_row("SELECT 1 FROM jobs WHERE lease_epoch = 1")
    worker.terminate()
    assert worker.wait(COMMAND_SEC) == 0
    [job] = site.sql("SELECT status, attempt_count FROM jobs WHERE stage = 'clip'")
    assert (job["status"], job["attempt_count"]) == ("queued", 0)
