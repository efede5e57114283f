"""The tutorial, followed to the letter on a table with rows in it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.docs import markdown
from tests.docs.site import Site
from tests.waiting import until

pytestmark = pytest.mark.process

TUTORIAL = markdown.page("tutorial")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "media")
    yield site
    site.leave()


def migrate_to_columns(site: Site) -> None:
    """Follow the tutorial up to the migration that adds the columns."""
    site.follow(markdown.section(TUTORIAL, "The table before"))
    site.run("python manage.py makemigrations media")
    site.run("python manage.py migrate")
    site.sql("INSERT INTO jobs (status) VALUES ('processing'), ('success')")

    site.add("mysite/settings.py", 'INSTALLED_APPS += ["jobreaper"]\n')
    site.follow(markdown.section(TUTORIAL, "Two: the model"))
    three = markdown.section(TUTORIAL, "Three: the migrations")
    make, check, columns = markdown.commands(three)[:3]
    site.run(make)
    site.follow(three)
    site.change("media/migrations/0002_leases.py", r"        migrations\.AddIndex.*", "    ]\n")
    site.run(check)
    site.run(columns)


def test_an_index_build_that_was_interrupted_goes_on_after_what_the_tutorial_says(
    site: Site,
) -> None:
    migrate_to_columns(site)
    interrupted = markdown.section(TUTORIAL, "When a concurrent index build was interrupted")
    [drop] = markdown.blocks(interrupted, "sql")
    [migrate] = markdown.commands(interrupted)
    invalid = "SELECT 1 FROM pg_index WHERE indrelid = 'jobs'::regclass AND NOT indisvalid"

    with psycopg.connect(site.conninfo) as long_transaction:
        long_transaction.execute("UPDATE jobs SET payload = payload")
        build = site.start(migrate)
        until(lambda: site.sql(invalid), 60)
        build.send_signal(signal.SIGINT)
        build.wait()
    assert site.sql(invalid)
    again = site.start(migrate)
    again.wait()
    assert again.returncode
    assert 'relation "idx_jobs_status_lease" already exists' in site.log.read_text()
    assert 'relation "idx_jobs_status_lease" already exists' in interrupted

    site.sql(drop.code)
    site.run(migrate)

    indexes = site.sql("SELECT 1 FROM pg_index WHERE indrelid = 'jobs'::regclass AND indisvalid")
    assert len(indexes) == 3
    site.run("python manage.py makemigrations --check --dry-run")


def test_rows_from_before_are_left_alone_until_somebody_gives_them_back(site: Site) -> None:
    migrate_to_columns(site)
    site.run("python manage.py migrate")
    site.follow(markdown.section(TUTORIAL, "Five: the worker"))
    [dead] = site.sql("SELECT id FROM jobs WHERE status = 'processing'")
    [fresh] = site.sql("INSERT INTO jobs (stage) VALUES ('clip') RETURNING id")

    assert "nothing to reap" in site.run("python manage.py reap")
    for block in markdown.blocks(markdown.section(TUTORIAL, "Four: old code on the new table")):
        site.add("by_hand.py", block.code.replace("[2]", f"[{dead['id']}]"))
        printed = site.run("python manage.py shell -v 0 -c 'import by_hand'")
        assert block.code.find("stuck") == -1 or printed.startswith(f"{dead['id']} ")

    worker = site.start("python manage.py work")
    until(lambda: not site.sql("SELECT 1 FROM jobs WHERE status <> 'success'"), 60)
    worker.terminate()
    assert worker.wait(10) == 0
    [done] = site.sql(f"SELECT payload FROM jobs WHERE id = {fresh['id']}")
    assert done["payload"] == {"output": f"clip-{fresh['id']}-1.mp4"}
