"""Models that inherit from one another, stand for one another, or hide rows."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps as installed
from django.contrib.admin import AdminSite
from django.db import connection, models
from django.test.utils import isolate_apps

from jobreaper import (
    LeasedJob,
    LeasedJobQuerySet,
    UnknownTable,
    cancel,
    claim,
    claim_next,
    hold,
    model_checks,
    pause,
    reap,
    register,
    requeue,
    tables,
)
from jobreaper.admin import LeasedJobAdmin
from jobreaper.celery import LeasedTask, dispatcher
from jobreaper.celery import checks as celery_checks
from jobreaper.tables import adoption, registry
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


def leased(name: str, *parents: type[models.Model], **body: Any) -> Any:
    options = body.pop("meta", {})
    meta = type("Meta", (), {"app_label": "documents", **options})
    return type(name, parents, {"Meta": meta, "__module__": __name__, **body})


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A registry of its own for the models of a test, which is what jobreaper sees."""
    known = dict(adoption._tables)
    with isolate_apps("project.documents") as isolated:
        monkeypatch.setattr(registry, "apps", isolated)
        monkeypatch.setattr(model_checks, "apps", isolated)
        yield isolated
    adoption._tables.clear()
    adoption._tables.update(known)


@pytest.fixture
def create() -> Iterator[Callable[..., None]]:
    made: list[Any] = []

    def run(*models_: Any) -> None:
        for model in models_:
            with connection.schema_editor() as editor:
                editor.create_model(model)
            made.append(model)

    yield run
    for model in reversed(made):
        with connection.schema_editor() as editor:
            editor.delete_model(model)


def told() -> list[str]:
    return [f"{message.id} {message.msg}" for message in model_checks.check_models(None)]


@pytest.fixture
def family(apps: Any) -> tuple[Any, Any]:
    work = leased("Work", LeasedJob)
    return work, leased("Video", work, title=models.TextField(default=""))


VERBS: list[Callable[[Any], object]] = [
    lambda model: claim(model, 1),
    lambda model: claim_next(model),
    lambda model: hold(model, 1).__enter__(),
    lambda model: cancel(model, [1], by="ann"),
    lambda model: requeue(model, [1], by="ann"),
    lambda model: pause("clip", model=model),
    lambda model: reap([model]),
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_child_whose_leases_are_its_parents_is_refused_by_name(
    family: tuple[Any, Any], verb: Callable[[Any], object]
) -> None:
    _, video = family
    late = leased("LateVideo", video, meta={"proxy": True})
    for model in (video, late):
        with pytest.raises(UnknownTable, match=r"the table of documents\.Work"):
            verb(model)


def test_the_checks_tell_of_it(family: tuple[Any, Any]) -> None:
    work, video = family
    assert tables.job_tables() == [tables.table_of(work)]
    [message] = told()
    assert "W020 documents.Video has no job table of its own" in message

    class Task(LeasedTask):
        name = "tests.video"
        model = video

    [error] = celery_checks._check_task(Task(), 300)
    assert error.id == "jobreaper.E006"
    assert "the table of documents.Work" in error.msg
    [refused] = LeasedJobAdmin(video, AdminSite()).check()
    assert refused.id == "jobreaper.E008"
    assert "the table of documents.Work" in refused.msg


def test_a_childs_job_is_sent_and_claimed_as_its_parents(
    family: tuple[Any, Any], create: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, video = family
    create(work, video)
    sent = []
    monkeypatch.setattr(dispatcher, "dispatch_job", lambda *job: sent.append(job))
    made = video.objects.create(title="one")
    assert sent == [(work, made.pk)]
    with hold(work, made.pk) as lease:
        assert lease.job.video.title == "one"
    made.refresh_from_db()
    assert made.status == "success"


def test_children_of_an_abstract_model_are_tables_of_their_own(apps: Any) -> None:
    base = leased("Work", LeasedJob, meta={"abstract": True})
    both = [leased(name, base) for name in ("Video", "Audio")]
    assert [table.model for table in tables.job_tables()] == both
    assert told() == []


def test_a_proxy_stands_for_its_table(apps: Any) -> None:
    work = leased("Work", LeasedJob)
    late = leased("LateWork", work, meta={"proxy": True})
    assert tables.table_of(late) is tables.table_of(work)
    assert told() == []


def test_an_abstract_or_swapped_model_has_no_jobs(
    apps: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownTable, match="it is abstract"):
        claim_next(leased("Base", LeasedJob, meta={"abstract": True}))
    settings.WORK_MODEL = "documents.Better"
    swapped = leased("Work", LeasedJob, meta={"swappable": "WORK_MODEL"})
    better = leased("Better", LeasedJob)
    with pytest.raises(UnknownTable, match=r"it is swapped for documents\.Better"):
        claim_next(swapped)
    assert [table.model for table in tables.job_tables()] == [better]


def test_a_model_that_django_does_not_manage_is_claimed_like_any_other(apps: Any, sql: Sql) -> None:
    work = leased("Work", LeasedJob, meta={"managed": False, "db_table": "works"})
    sql("CREATE TABLE works (LIKE jobs INCLUDING ALL)")
    try:
        sql("INSERT INTO works DEFAULT VALUES")
        [lease] = claim_next(work)
        lease.finish()
        assert [row["status"] for row in sql("TABLE works")] == ["success"]
    finally:
        sql("DROP TABLE works")


def test_a_job_whose_other_fields_are_in_a_parents_table_is_claimed_like_any_other(
    apps: Any, create: Callable[..., None]
) -> None:
    document = leased(
        "Document",
        models.Model,
        title=models.TextField(default=""),
        priority=models.IntegerField(default=0),
        modified=models.DateTimeField(auto_now=True),
    )
    report = leased("Report", document, LeasedJob, pages=models.IntegerField(default=0))
    create(document, report)
    assert told() == []
    made = report.objects.create(title="one")
    with hold(report, made.pk) as lease:
        assert lease.job.title == "one"
        lease.job.title, lease.job.pages = "two", 4
        lease.job.save()
    made.refresh_from_db()
    assert (made.title, made.pages, made.status) == ("two", 4, "success")
    other = report.objects.create(title="other")
    [lease] = claim_next(report)
    assert (lease.pk, lease.job.priority) == (other.pk, 0)
    assert reap([report]).all_errors == []
    assert requeue(report, [other.pk], by="ann") == [other.pk]


# Managers


class Shown(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(stage="shown")


class FirstTen(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset()[:10]


class Annotated(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().annotate(one=models.Value(1)).order_by("pk")


class OfTheTenant(models.Manager[Any]):
    def get_queryset(self) -> Any:
        raise LookupError("no tenant")


@pytest.mark.parametrize(
    ("manager", "hides"),
    [(Shown, True), (FirstTen, True), (Annotated, False), (OfTheTenant, False)],
)
def test_a_manager_that_hides_rows_is_a_warning(
    apps: Any, manager: type[models.Manager[Any]], hides: bool
) -> None:
    leased("Work", LeasedJob, objects=manager())
    messages = told()
    assert [message.split()[0] for message in messages] == ["jobreaper.W021"] * hides
    if hides:
        assert "documents.Work.objects leaves rows out" in messages[0]


def test_a_base_manager_that_hides_rows_is_too(apps: Any) -> None:
    leased(
        "Work",
        LeasedJob,
        objects=models.Manager(),
        shown=Shown(),
        meta={"base_manager_name": "shown"},
    )
    [message] = told()
    assert "documents.Work.shown leaves rows out" in message


def test_another_manager_beside_them_may_hide_what_it_likes(apps: Any) -> None:
    leased("Work", LeasedJob, objects=models.Manager(), shown=Shown())
    assert told() == []


def test_a_table_that_is_adopted_is_looked_at_as_well(apps: Any) -> None:
    fields: dict[str, Any] = {
        "status": models.TextField(),
        "claimed_at": models.DateTimeField(null=True),
    }
    fields["stage"] = models.TextField()
    chore = leased("Chore", models.Model, objects=Shown(), **fields)
    register(chore, ttl=60, reclaim_only=True)
    [message] = told()
    assert "documents.Chore.objects leaves rows out" in message


def test_the_queryset_of_jobs_serves_a_manager_of_ones_own(
    apps: Any, create: Callable[..., None]
) -> None:
    class Works(LeasedJobQuerySet[Any]):
        def long(self) -> Any:
            return self.filter(expected_duration_ms__gt=60_000)

    work = leased("Work", LeasedJob, objects=Works.as_manager())
    create(work)
    made = work.objects.create(expected_duration_ms=90_000)
    work.objects.create()
    assert [*work.objects.long().due()] == [made]
    with hold(work, made.pk):
        assert [*work.objects.running().long()] == [made]


def test_the_projects_own_models_pass() -> None:
    assert installed.get_models()
    assert told() == []
