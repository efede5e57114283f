"""A job whose instance its model cannot make."""

from typing import Any

import pytest
from django.db import connections, models
from django.db.models.signals import post_init
from pytest_django import Settings

from jobreaper import claim, claim_next
from jobreaper.protocol import rows
from project.media.models import Job
from tests.rows import Rows

UNTOUCHED = (
    "stage",
    "max_attempts",
    "reap_count",
    "next_earliest_run_at",
    "expected_duration_ms",
    "finished_at",
    "dispatched_at",
    "fail_code",
    "fail_reason",
    "payload",
    "created_at",
    "updated_at",
)


LIMITS: list[dict[str, Any]] = [{}, {"STAGES": {"clip": {"max_running": 9}}}]


class Spoilt(Exception):
    pass


def spoil_in_receiver(key: object, request: pytest.FixtureRequest) -> None:
    def decrypt(instance: Job, **_: Any) -> None:
        if instance.pk == key:
            raise Spoilt("wrong key")

    post_init.connect(decrypt, sender=Job, weak=False)
    request.addfinalizer(lambda: post_init.disconnect(decrypt, sender=Job))


def spoil_in_from_db(key: object, request: pytest.FixtureRequest) -> None:
    def from_db(cls: Any, db: str, names: Any, values: Any) -> Any:
        if key in values:
            raise Spoilt("wrong key")
        return models.Model.from_db.__func__(cls, db, names, values)  # type: ignore[attr-defined]

    request.getfixturevalue("monkeypatch").setattr(Job, "from_db", classmethod(from_db))


def spoil_in_field(key: object, request: pytest.FixtureRequest) -> None:
    def convert(value: Any, expression: Any, connection: Any) -> Any:
        if value == key:
            raise Spoilt("wrong key")
        return value

    [place] = [n for n, own in enumerate(Job._meta.concrete_fields) if own.primary_key]
    given = rows._converters(Job, "default")
    converters = [*given, (place, convert, None)]
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(rows, "_converters", lambda *_: converters)


SPOILING = [spoil_in_receiver, spoil_in_from_db, spoil_in_field]


@pytest.mark.parametrize("spoil", SPOILING)
@pytest.mark.parametrize("options", LIMITS, ids=["unlimited", "limited"])
def test_a_job_that_cannot_be_made_fails_and_the_others_are_claimed(
    jobs: Rows, settings: Settings, request: pytest.FixtureRequest, options: Any, spoil: Any
) -> None:
    settings.JOBREAPER = options
    planted = [jobs.plant() for _ in range(4)]
    bad = planted.pop(1)
    spoil(bad, request)
    assert [lease.pk for lease in claim_next(Job, 9)] == planted
    row = jobs.row(bad)
    assert (row["status"], row["attempt_count"]) == ("queued", 1)
    assert (row["fail_code"], row["fail_reason"]) == ("Spoilt", "wrong key")
    assert row["next_earliest_run_at"] > jobs.now()
    assert jobs.event_types(bad) == ["job:retried"]


@pytest.mark.parametrize("spoil", SPOILING)
@pytest.mark.parametrize("options", LIMITS, ids=["unlimited", "limited"])
def test_a_job_asked_for_that_cannot_be_made_fails_and_says_why(
    jobs: Rows, settings: Settings, request: pytest.FixtureRequest, options: Any, spoil: Any
) -> None:
    settings.JOBREAPER = options
    bad = jobs.plant(max_attempts=1)
    spoil(bad, request)
    with pytest.raises(Spoilt, match="wrong key"):
        claim(Job, bad)
    row = jobs.row(bad)
    assert (row["status"], row["fail_code"]) == ("failed", "Spoilt")


TIMES = (
    "2026-01-31 12:00:00+00",
    "2026-06-30 23:59:59.999999+02",
    "2026-06-30 23:59:59.5+02",
    "2026-06-30 23:59:59.001-09:30",
    "1850-01-01 00:00:00.25+00",
    "0001-01-01 00:00:00+00",
    "9998-12-31 23:59:59+00",
    "0099-12-31 23:59:59+00",
)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Amsterdam", "America/Adak"])
def test_times_are_read_as_django_reads_them(zone: str, jobs: Rows) -> None:
    keys = [jobs.plant(created_at=at, stage=str(n)) for n, at in enumerate(TIMES)]
    zoned = connections["default"].copy("default")
    zoned.settings_dict = {**zoned.settings_dict, "TIME_ZONE": zone}
    before, connections["default"] = connections["default"], zoned
    try:
        for key in keys:
            expected = Job.objects.values_list("created_at").get(pk=key)
            lease = claim(Job, key)
            assert lease is not None
            assert (lease.job.created_at,) == expected
            assert lease.job.created_at.utcoffset() == expected[0].utcoffset()
    finally:
        zoned.close()
        connections["default"] = before
