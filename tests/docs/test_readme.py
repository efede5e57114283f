"""The README's code, written to files and run as a newcomer would."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import markdown
from tests.docs.site import Site

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

README = (markdown.ROOT / "README.md").read_text()
QUICK_START = markdown.section(README, "Quick start")
WITH_CELERY = markdown.section(README, "With Celery")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "reports")
    yield site
    site.leave()


def report(condition: str) -> str:
    return f"SELECT 1 FROM reports_report WHERE {condition}"


def test_the_quick_start_brings_the_job_of_a_killed_worker_to_its_end(site: Site) -> None:
    follow_the_quick_start(site)


def follow_the_quick_start(site: Site) -> None:
    install, make_migrations, migrate, queue, work, reap = markdown.commands(QUICK_START)
    assert install.startswith("pip install ")
    site.follow(QUICK_START)
    site.run(make_migrations)
    site.run(migrate)
    site.run(queue)

    worker = site.start(work)
    site.await_row(report("status = 'processing'"))
    # Soon after its first claim, a worker is known by its sessions.
    site.await_row("SELECT 1 FROM jobreaper_workers")
    worker.kill()
    worker.wait()
    printed = site.run(reap).splitlines()

    [promised] = markdown.blocks(QUICK_START, "text")
    first, took, taken_back = promised.code.splitlines()
    assert (printed[0], printed[1].split()[0]) == (first, took.split()[0])
    assert taken_back in site.log.read_text()
    assert site.sql(report("status = 'queued' AND next_earliest_run_at <= now()"))

    site.change("reports/management/commands/write_reports.py", r"sleep\(1\)", "sleep(0.01)")
    assert site.run(work) == "May is written\n"
    assert site.sql(report("status = 'success'"))
    events = site.sql("SELECT type FROM job_events ORDER BY id")
    assert [event["type"] for event in events] == ["job:worker_lost", "job:finished"]
    assert all(f"`{event['type']}`" in QUICK_START for event in events)


def test_a_report_made_as_the_readme_says_is_written_by_celery(site: Site) -> None:
    [work] = markdown.commands(WITH_CELERY)
    [make] = re.findall(r'`(Report\.objects\.create\(title="June"\))`', WITH_CELERY)
    site.follow(QUICK_START)
    site.follow(WITH_CELERY)
    site.run("python manage.py makemigrations reports")
    site.run("python manage.py migrate")

    site.start(work)
    site.run(f"python manage.py shell -c 'from reports.models import Report; {make}'")

    site.await_row(report("status = 'success'"))
    # Beat and the reaper are at work too.
    site.await_row("SELECT 1 FROM jobreaper_passes WHERE trigger = 'beat'")
