"""A job is kept to which anything refers, in whatever way, and every other one is pruned."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, models
from django.test import override_settings
from django.test.utils import isolate_apps

from jobreaper import LeasedJob, prune
from jobreaper.control import retention
from jobreaper.tables import JobTable, adoption, by_alias
from tests.control.conftest import DAY
from tests.keys import Hashed, Mark
from tests.rows import Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

Refer = Callable[[Any], object]


def model(name: str, *parents: Any, **body: Any) -> Any:
    options = body.pop("meta", {})
    meta = type("Meta", (), {"app_label": "media", **options})
    return type(name, parents or (models.Model,), {"Meta": meta, "__module__": __name__, **body})


class House:
    """Jobs of a table, and tables that refer to them."""

    def __init__(self, sql: Sql) -> None:
        self.sql = sql
        self.made: list[Any] = []
        self.upload: Any = None

    def uploads(self, **fields: Any) -> None:
        self.upload = model(
            "Upload",
            LeasedJob,
            **{
                "id": models.UUIDField(primary_key=True, default=uuid.uuid4),
                "number": models.IntegerField(unique=True),
                **fields,
            },
        )
        self.create(self.upload)

    def create(self, made: Any) -> Any:
        with connection.schema_editor() as editor:
            editor.create_model(made)
        self.made.append(made)
        return made

    def add(self, number: int, **fields: Any) -> Any:
        job = self.upload.objects.create(number=number, status="success", **fields)
        self.sql(
            "UPDATE media_upload SET finished_at = statement_timestamp() + %s WHERE number = %s",
            ago(9 * DAY),
            number,
        )
        return job

    def left(self) -> list[int]:
        return sorted(row["number"] for row in self.sql("SELECT number FROM media_upload"))

    def drop(self) -> None:
        for made in reversed(self.made):
            with connection.schema_editor() as editor:
                editor.delete_model(made)


@pytest.fixture
def house(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    ages = override_settings(JOBREAPER={"RETENTION": {"success": "1d"}})
    with ages, isolate_apps("project.media"):
        house = House(sql)

        def tables(database: str | None) -> dict[str, list[JobTable]]:
            return by_alias([JobTable(model=house.upload, retention=True)], database=database)

        monkeypatch.setattr(retention, "by_alias", tables)
        known = dict(adoption._tables)
        yield house
        house.drop()
        adoption._tables.clear()
        adoption._tables.update(known)


def by_a_key_of_another_name(house: House) -> Refer:
    receipt = house.create(
        model(
            "Receipt",
            serial=models.UUIDField(primary_key=True, default=uuid.uuid4),
            upload=models.ForeignKey(house.upload, models.CASCADE, db_column="for_upload"),
        )
    )
    return lambda job: receipt.objects.create(upload=job)


def by_another_field(house: House) -> Refer:
    receipt = house.create(
        model("Receipt", upload=models.ForeignKey(house.upload, models.PROTECT, to_field="number"))
    )
    return lambda job: receipt.objects.create(upload=job)


def one_to_one_as_key(house: House) -> Refer:
    receipt = house.create(
        model(
            "Receipt", upload=models.OneToOneField(house.upload, models.CASCADE, primary_key=True)
        )
    )
    return lambda job: receipt.objects.create(upload=job)


def that_would_be_set_to_null(house: House) -> Refer:
    upload = models.ForeignKey(house.upload, models.SET_NULL, null=True, related_name="+")
    receipt = house.create(model("Receipt", upload=upload))
    receipt.objects.create(upload=None)
    return lambda job: receipt.objects.create(upload=job)


def without_a_constraint(house: House) -> Refer:
    upload = models.ForeignKey(house.upload, models.DO_NOTHING, db_constraint=False)
    receipt = house.create(model("Receipt", upload=upload))
    return lambda job: receipt.objects.create(upload=job)


def by_a_proxy(house: House) -> Refer:
    late = model("LateUpload", house.upload, meta={"proxy": True})
    receipt = house.create(model("Receipt", upload=models.ForeignKey(late, models.CASCADE)))
    return lambda job: receipt.objects.create(upload_id=job.pk)


def in_another_schema(house: House) -> Refer:
    receipt = house.create(
        model(
            "Receipt",
            upload=models.ForeignKey(house.upload, models.CASCADE, db_constraint=False),
            meta={"db_table": 'attic"."receipts'},
        )
    )
    return lambda job: receipt.objects.create(upload=job)


def many_to_many(house: House) -> Refer:
    label = house.create(model("Label", uploads=models.ManyToManyField(house.upload)))
    return lambda job: label.objects.create().uploads.add(job)


def through_a_model(house: House) -> Refer:
    label = house.create(model("Label"))
    use = model(
        "Use",
        serial=models.BigAutoField(primary_key=True),
        label=models.ForeignKey(label, models.CASCADE),
        upload=models.ForeignKey(house.upload, models.CASCADE, to_field="number"),
    )
    label.add_to_class(
        "uploads", models.ManyToManyField(house.upload, through=use, through_fields=None)
    )
    house.create(use)
    return lambda job: use.objects.create(label=label.objects.create(), upload=job)


def a_childs_row(house: House) -> Refer:
    child = house.create(model("Film", house.upload, title=models.TextField(default="")))
    return lambda job: child(upload_ptr=job).save_base(raw=True)


def a_table_of_which_django_knows_nothing(house: House) -> Refer:
    house.sql(
        "CREATE TABLE attic.notes (at int, n int REFERENCES media_upload (number)"
        " ON DELETE CASCADE) PARTITION BY RANGE (at)"
    )
    house.sql("CREATE TABLE attic.notes_1 PARTITION OF attic.notes FOR VALUES FROM (0) TO (10)")
    return lambda job: house.sql("INSERT INTO attic.notes VALUES (1, %s)", job.number)


WAYS: list[Callable[[House], Refer]] = [
    by_a_key_of_another_name,
    by_another_field,
    one_to_one_as_key,
    that_would_be_set_to_null,
    without_a_constraint,
    by_a_proxy,
    in_another_schema,
    many_to_many,
    through_a_model,
    a_childs_row,
    a_table_of_which_django_knows_nothing,
]


@pytest.fixture
def attic(sql: Sql) -> Iterator[None]:
    sql("CREATE SCHEMA attic")
    yield
    sql("DROP SCHEMA attic CASCADE")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_job_is_kept_to_which_a_row_refers(
    attic: None, house: House, way: Callable[[House], Refer]
) -> None:
    house.uploads()
    refer = way(house)
    referred, *_ = [house.add(number) for number in range(3)]
    refer(referred)
    if way is a_childs_row:  # Saving the child's row has saved its parent's.
        house.sql("UPDATE media_upload SET finished_at = '2020-01-01', status = 'success'")
    assert prune(dry_run=True).deleted["media_upload"] == 2
    result = prune()
    assert (result.deleted["media_upload"], result.errors) == (2, [])
    assert house.left() == [0]


def test_the_jobs_own_many_to_many_rows_keep_it(house: House) -> None:
    label = house.create(model("Label"))
    house.uploads(labels=models.ManyToManyField(label))
    house.add(1).labels.add(label.objects.create())
    house.add(2)
    assert prune().errors == []
    assert house.left() == [1]


def test_parents_go_after_their_children(house: House) -> None:
    house.uploads(parent=models.ForeignKey("self", models.CASCADE, null=True))
    first = house.add(1)
    house.add(2, parent=first)
    assert prune().errors == []
    assert house.left() == [1]
    prune()
    assert house.left() == []


def test_a_job_that_refers_to_itself_is_no_reason_to_keep_it(house: House) -> None:
    house.uploads(parent=models.ForeignKey("self", models.CASCADE, null=True))
    job = house.add(1)
    house.sql("UPDATE media_upload SET parent_id = id")
    assert prune().deleted["media_upload"] == 1
    assert job.number not in house.left()


@pytest.mark.parametrize("key", [models.UUIDField(), models.CharField(max_length=40)])
def test_a_generic_relation_keeps_a_job(house: House, key: Any) -> None:
    tag = model(
        "Tag",
        kind=models.ForeignKey(ContentType, models.CASCADE, related_name="+"),
        key=key,
        what=GenericForeignKey("kind", "key"),
    )
    house.uploads(tags=GenericRelation(tag, content_type_field="kind", object_id_field="key"))
    house.create(tag)
    tagged, *others = [house.add(number) for number in range(3)]
    kind, _ = ContentType.objects.get_or_create(app_label="media", model="upload")
    other_kind = ContentType.objects.get_for_model(ContentType)
    tag.objects.create(kind=kind, key=tagged.pk)
    tag.objects.create(kind=other_kind, key=others[0].pk)
    try:
        assert prune().errors == []
        assert house.left() == [0]
    finally:
        house.sql("DELETE FROM media_tag")
        kind.delete()


@pytest.mark.parametrize("key", [models.CharField(max_length=40), Hashed()])
def test_generic_keys_that_the_database_cannot_compare_keep_every_job(
    house: House, key: Any
) -> None:
    tag = model(
        "Tag",
        kind=models.ForeignKey(ContentType, models.CASCADE, related_name="+"),
        key=key,
        what=GenericForeignKey("kind", "key"),
    )
    tags = GenericRelation(tag, content_type_field="kind", object_id_field="key")
    house.uploads(id=Hashed(primary_key=True), tags=tags)
    house.create(tag)
    tagged, *_ = [house.add(number, pk=Mark(number)) for number in range(2)]
    kind, _ = ContentType.objects.get_or_create(app_label="media", model="upload")
    tag.objects.create(kind=kind, key=tagged.pk)
    try:
        errors = prune().errors
        if isinstance(key, Hashed):
            assert (errors, house.left()) == ([], [0])
        else:
            assert (len(errors), house.left()) == (1, [0, 1])
            assert "media.Tag.key has the keys of its jobs as Python does" in errors[0]
    finally:
        house.sql("DELETE FROM media_tag")
        kind.delete()


def test_a_generic_key_that_is_nobodys_relation_keeps_nothing(house: House) -> None:
    """As Django's own delete() leaves it: a log of what was done to jobs outlives them."""
    tag = house.create(
        model(
            "Tag",
            kind=models.ForeignKey(ContentType, models.CASCADE, related_name="+"),
            key=models.UUIDField(),
            what=GenericForeignKey("kind", "key"),
        )
    )
    house.uploads()
    tag.objects.create(kind=ContentType.objects.get_for_model(ContentType), key=house.add(1).pk)
    assert prune().errors == []
    assert house.left() == []


class ReceiptsElsewhere:
    def db_for_write(self, model: type[models.Model], **hints: object) -> str | None:
        return "elsewhere" if model.__name__ == "Receipt" else None

    db_for_read = db_for_write


@pytest.mark.parametrize("name", ["books", None])
def test_references_from_another_database_are_not_overlooked(
    house: House, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """By another alias it may be the same database."""
    monkeypatch.setitem(
        connections.databases, "elsewhere", {**connection.settings_dict, "NAME": name}
    )
    house.uploads()
    by_a_key_of_another_name(house)
    house.add(1)
    with override_settings(DATABASE_ROUTERS=[ReceiptsElsewhere()]):
        if name is None:
            there = connections["elsewhere"].settings_dict
            monkeypatch.setitem(there, "NAME", connection.settings_dict["NAME"])
        result = prune()
    if name is None:
        assert (house.left(), result.errors) == ([], [])
        return
    assert house.left() == [1]
    assert len(result.errors) == 1
    assert "media.Receipt, which refers to its jobs, is in the database" in result.errors[0]
    assert "job_events" in result.deleted
