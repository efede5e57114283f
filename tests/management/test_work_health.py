"""A probe that runs a command: whether a worker was seen lately."""

import socket
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils.timezone import now
from pytest_django import Settings

from jobreaper.models import Worker

pytestmark = pytest.mark.django_db


def plant(worker: str = "w1", seen_sec_ago: float = 5, **fields: Any) -> None:
    given = {"kind": "work", "host": socket.gethostname(), "pid": 7, "version": "0.1.0"}
    seen_at = now() - timedelta(seconds=seen_sec_ago)
    Worker.objects.create(worker=worker, seen_at=seen_at, **{**given, **fields})


def health(**options: Any) -> str:
    out = StringIO()
    call_command("work_health", stdout=out, **options)
    return out.getvalue()


def test_a_worker_that_was_seen_lately_is_well() -> None:
    plant("old", 600)
    plant("w1", 5)
    assert health().startswith("w1 was seen ")
    assert health(worker="w1").startswith("w1 was seen ")
    with pytest.raises(CommandError, match=r"old was seen \d+ s ago"):
        health(worker="old")
    assert health(worker="old", max_age=700).startswith("old was seen ")


@pytest.mark.parametrize(
    "fields", [{"host": "elsewhere"}, {"kind": "celery"}, {"gone_at": now()}, {"seen_sec_ago": 61}]
)
def test_it_is_not_well_if_it_is_elsewhere_gone_or_silent(fields: dict[str, Any]) -> None:
    plant(**fields)
    with pytest.raises(CommandError) as refused:
        health()
    assert refused.value.returncode == 1


def test_without_presence_it_says_so(settings: Settings) -> None:
    settings.JOBREAPER = {"PRESENCE_GRACE_SEC": 0}
    with pytest.raises(CommandError, match="PRESENCE_GRACE_SEC is 0") as refused:
        health()
    assert refused.value.returncode == 2
