"""Job tables in two databases: the admin reads and writes where the jobs are, and says where."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client, override_settings
from pytest_django import DjangoDbBlocker

import jobreaper
from jobreaper import checks, claim_next, enqueue, pause
from jobreaper.admin import timeline
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent, Pause, ReaperPass, RefusedRow, Worker
from project.media.models import Job
from tests.admin.conftest import make_job
from tests.admin.pages import html, list_of, listed, messages, page_of, text

BOTH = ["default", "jobs"]

pytestmark = [pytest.mark.django_db(databases=BOTH), pytest.mark.usefixtures("routed")]

EVENTS, PAUSES, PASSES, JOBS = (list_of(model) for model in (JobEvent, Pause, ReaperPass, Job))
WORKERS = list_of(Worker)


class MediaElsewhere:
    """The app `media` is in the database `jobs`; each database has jobreaper's own tables."""

    def db_for_write(self, model: Any, **hints: object) -> str | None:
        return "jobs" if model._meta.app_label == "media" else None

    db_for_read = db_for_write


class ReadFromACopy(MediaElsewhere):
    """Reads go to a copy that nobody can reach."""

    def db_for_read(self, model: Any, **hints: object) -> str | None:
        return "copy" if model._meta.app_label in ("media", "jobreaper") else None


@pytest.fixture(scope="module", autouse=True)
def second_database(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A database `jobs` beside the default one, migrated like it."""
    with django_db_blocker.unblock():
        name = f"{connection.settings_dict['NAME']}_jobs"
        params = connection.get_connection_params()
        keys = ("dbname", "user", "password", "host", "port")
        server = psycopg.connect(**{k: params[k] for k in keys if k in params}, autocommit=True)
        server.execute(f'CREATE DATABASE "{name}"'.encode())
        connections.databases["jobs"] = {**connection.settings_dict, "NAME": name}
        try:
            call_command("migrate", database="jobs", verbosity=0)
            connections["jobs"].close()
            yield
        finally:
            connections["jobs"].close()
            del connections["jobs"]
            del connections.databases["jobs"]
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
            server.close()


@pytest.fixture
def routed() -> Iterator[None]:
    with override_settings(DATABASE_ROUTERS=[MediaElsewhere()]):
        yield


class Shards:
    """All jobs are in the database that is chosen at the moment."""

    chosen = "default"

    def db_for_write(self, model: Any, **hints: object) -> str:
        return self.chosen

    db_for_read = db_for_write


def lapse(alias: str, table: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET lease_expires_at = now() - interval '1 s'")


def event(alias: str, **data: Any) -> JobEvent:
    job_id = str(data.pop("job_id", 1))
    made: JobEvent = JobEvent.objects.using(alias).create(job_id=job_id, data=data)
    made.refresh_from_db()
    return made


def test_a_job_is_changed_where_it_is_and_its_events_are_shown(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHOWN_EVENTS", 1)
    job = make_job()
    assert job._state.db == "jobs"
    decoy = event("default", job_id=job.pk, table="jobs", type="decoy")
    for action in ("cancel_jobs", "requeue_jobs"):
        sent = {"action": action, "_selected_action": job.pk, "confirmed": "yes"}
        superuser.post(JOBS, sent)
    assert JobEvent.objects.using("jobs").count() == 2
    assert [*JobEvent.objects.using("default").all()] == [decoy]
    assert LogEntry.objects.using("default").count() == 2
    page = html(superuser, page_of(job))
    assert "An operator gave the job back to the queue" in page
    assert "decoy" not in page
    [link] = re.findall(r'<a href="([^"]*)">All events of this job', page)
    shown = superuser.get(unescape(link)).context["cl"].result_list
    assert [row.type for row in shown] == ["admin:requeued", "admin:cancelled"]


@pytest.mark.parametrize(
    ("address", "alias"),
    [
        (EVENTS, "default"),
        (f"{EVENTS}?database=jobs", "jobs"),
        (f"{EVENTS}?database=nowhere", "default"),
        (PAUSES, "default"),
        (f"{PAUSES}?database=jobs", "jobs"),
        (f"{PASSES}?database=jobs", "jobs"),
        (list_of(RefusedRow), "default"),
        (f"{list_of(RefusedRow)}?database=jobs", "jobs"),
        (WORKERS, "default"),
        (f"{WORKERS}?database=jobs", "jobs"),
        (JOBS, "jobs"),
        (list_of(OwnJob), "default"),
    ],
)
def test_each_list_says_which_database_it_shows(
    superuser: Client, address: str, alias: str
) -> None:
    page = html(superuser, address)
    assert f"in the database {alias}" in text(page)
    if "jobreaper" in address and "/job/" not in address:
        [choice] = re.findall(r'(?s)<details data-filter-title="database".*?</details>', page)
        chosen = re.findall(r'(?s)<li class="selected">\s*<a href="\?database=(\w+)"', choice)
        assert chosen == [alias]
        assert re.findall(r'href="\?database=(\w+)"', choice) == BOTH


def test_a_row_of_a_list_leads_to_the_row_of_its_database(superuser: Client) -> None:
    job = make_job()
    here = event("default", table="jobreaper_jobs", type="here")
    there = JobEvent.objects.using("jobs").create(
        pk=here.pk, job_id=str(job.pk), data={"table": "jobs", "type": "there"}
    )
    for alias, word in (("default", "here"), ("jobs", "there")):
        page = html(superuser, f"{EVENTS}?database={alias}")
        [link] = {*re.findall(rf'href="({EVENTS}{there.pk}/change/[^"]*)"', page)}
        shown = html(superuser, unescape(link))
        assert f'"type": "{word}"' in unescape(shown)
        assert f"in the database {alias}" in text(shown)
        assert (page_of(job) in shown) == (alias == "jobs")


def test_an_event_does_not_lead_to_a_job_of_another_database(superuser: Client) -> None:
    event("default", table="jobs", job_id=make_job().pk)
    assert "/media/job/" not in re.sub(r"(?s)<nav.*?</nav>", "", html(superuser, EVENTS))


def test_a_worker_leads_to_the_jobs_that_it_holds_in_its_database(superuser: Client) -> None:
    for alias in BOTH:
        fields = {"worker": "h:1:a", "kind": "work", "host": "h", "pid": 1, "version": "0"}
        Worker.objects.using(alias).create(**fields)
    make_job()
    assert claim_next(Job, worker="h:1:a")
    for alias, said in (("default", []), ("jobs", ["jobs: 1"])):
        page = html(superuser, f"{WORKERS}?database={alias}")
        assert re.findall(r'worker=h%3A1%3Aa">([^<]*)<', page) == said


def test_filters_offer_the_tables_of_the_database(superuser: Client) -> None:
    def offered(address: str) -> set[str]:
        return {*re.findall(r'[?&;]table=([^"&]*)"', html(superuser, address))}

    assert offered(f"{EVENTS}?database=jobs") == {"jobs", "asr_jobs"}
    assert "jobreaper_jobs" in offered(EVENTS)
    assert "jobs" not in offered(EVENTS)


def test_a_pause_is_kept_where_the_jobs_are_and_is_listed(superuser: Client) -> None:
    make_job(stage="clip")
    add = {"table": "jobs", "name": "clip", "reason": "disk full"}
    answer = superuser.post(f"{PAUSES}add/", add, follow=True)
    assert answer.redirect_chain == [(f"{PAUSES}?database=jobs", 302)]
    [row] = answer.context["cl"].result_list
    assert (row.name, row.by) == ("clip", "ada")
    assert not Pause.objects.using("default").exists()
    assert claim_next(Job) == []
    assert superuser.post(f"{PAUSES}add/", add).context["adminform"].form.errors
    chosen = {"action": "delete_selected", "_selected_action": row.pk}
    superuser.post(f"{PAUSES}?database=jobs", chosen)
    assert len(claim_next(Job)) == 1


def test_the_same_pause_may_be_in_both(superuser: Client) -> None:
    pause("clip", model=Job)
    # As it was left by an earlier router.
    Pause.objects.using("default").create(table="jobs", name="clip")
    add = {"table": "jobreaper_jobs", "name": "clip", "reason": ""}
    assert superuser.post(f"{PAUSES}add/", add).status_code == 302
    assert len(listed(superuser, PAUSES)) == 2
    left = Pause.objects.using("default").get(table="jobs")
    answer = superuser.post(f"{PAUSES}{left.pk}/delete/", {"post": "yes"})
    assert answer.status_code == 302
    assert [row.table for row in Pause.objects.using("default")] == ["jobreaper_jobs"]
    assert [row.table for row in Pause.objects.using("jobs")] == ["jobs"]


def test_a_pause_on_its_page_is_deleted_in_its_database(superuser: Client) -> None:
    pause("clip", model=Job)
    [pk] = listed(superuser, f"{PAUSES}?database=jobs")
    address = f"{PAUSES}{pk}/delete/?_changelist_filters=database%3Djobs"
    assert superuser.post(address, {"post": "yes"}).status_code == 302
    assert not Pause.objects.using("jobs").exists()


def test_passes_are_listed_by_database(superuser: Client) -> None:
    jobreaper.reap()
    for alias in BOTH:
        [run] = ReaperPass.objects.using(alias).all()
        assert listed(superuser, f"{PASSES}?database={alias}") == [run.pk]


def test_a_copy_to_read_from_is_not_read(superuser: Client) -> None:
    job, own = make_job(), enqueue("mail")
    pause("clip", model=Job)
    with override_settings(DATABASE_ROUTERS=[ReadFromACopy()]):
        for address in (JOBS, list_of(OwnJob), EVENTS, PAUSES, PASSES, page_of(job), page_of(own)):
            assert html(superuser, address)
        add = {"type": "mail", "payload": "{}", "max_attempts": "3", "priority": "0"}
        add |= {"dedupe_key": "once"}
        new = f"{list_of(OwnJob)}add/"
        assert superuser.post(new, add).status_code == 302
        assert superuser.post(new, add).context["adminform"].form.errors
        sent = {"action": "cancel_jobs", "_selected_action": job.pk, "confirmed": "yes"}
        said = messages(superuser.post(JOBS, sent, follow=True))
        assert said.startswith("1 job was cancelled.")
        edited = {"stage": "asr", "max_attempts": "3", "expected_duration_ms": "", "payload": "{}"}
        assert superuser.post(page_of(job), edited).status_code == 302
        assert superuser.post(page_of(job, "delete"), {"post": "yes"}).status_code == 302
    assert not Job.objects.exists()


def test_with_one_database_there_is_no_choice_and_no_word_of_it(superuser: Client) -> None:
    with override_settings(DATABASE_ROUTERS=[]):
        for address in (EVENTS, PAUSES, PASSES, JOBS):
            page = html(superuser, address)
            assert "in the database" not in text(page)
            assert "database=" not in page


class KeepOut(MediaElsewhere):
    """The database `jobs` is for the app `media` alone."""

    def allow_migrate(self, alias: str, app_label: str, **hints: object) -> bool:
        return (alias == "jobs") == (app_label == "media")


def test_a_router_that_keeps_our_tables_from_the_jobs_is_named() -> None:
    def found() -> list[Any]:
        return [m for m in checks.check_databases(None) if m.id == "jobreaper.W017"]

    assert found() == []
    with override_settings(DATABASE_ROUTERS=[KeepOut()]):
        [warning] = found()
    assert "job_events, jobreaper_pauses" in warning.msg
    assert "out of the database 'jobs', which holds jobs, asr_jobs" in warning.msg
    assert "migrate --database jobs" in str(warning.hint)


def test_the_periodic_tasks_are_made_where_beat_looks_for_them() -> None:
    periodic = pytest.importorskip("django_celery_beat.models").PeriodicTask
    assert periodic.objects.using("default").filter(task="jobreaper.reap").exists()
    assert not periodic.objects.using("jobs").exists()


def test_one_reaper_goes_over_the_tables_of_both_databases() -> None:
    job, own = make_job(), enqueue("mail")
    for model, alias, table in ((Job, "jobs", "jobs"), (OwnJob, "default", "jobreaper_jobs")):
        assert len(claim_next(model)) == 1
        lapse(alias, table)
    found = jobreaper.reap([Job, OwnJob], hold=False)
    assert found.requeued_ids == {"jobs": [job.pk], "jobreaper_jobs": [own.pk]}
    assert all(JobEvent.objects.using(alias).filter(type="reaper:requeued") for alias in BOTH)


def test_one_reaper_goes_over_both_shards_of_a_table() -> None:
    shards = Shards()
    with override_settings(DATABASE_ROUTERS=[shards]):
        made = {}
        for shards.chosen in BOTH:
            made[shards.chosen] = enqueue("mail").pk
            [lease] = claim_next(OwnJob)
            assert lease.pk == made[shards.chosen]
            lapse(shards.chosen, "jobreaper_jobs")
        for alias in BOTH:
            found = jobreaper.reap([OwnJob], hold=False, database=alias)
            assert found.requeued_ids == {"jobreaper_jobs": [made[alias]]}
            [job] = OwnJob.objects.using(alias).all()
            assert (job.pk, job.status) == (made[alias], "queued")
