"""Staff with and without permissions, and jobs in every state."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client

import jobreaper
from jobreaper.protocol.lease import Lease
from project.media.models import Job


@pytest.fixture
def superuser(db: None) -> Client:
    """A browser in which the superuser "ada" is signed in."""
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Sign in a member of staff who has these permissions, such as "media.view_job"."""

    def sign_in(*permissions: str) -> Client:
        user = User.objects.create_user("ada", is_staff=True)
        for permission in permissions:
            label, codename = permission.split(".")
            user.user_permissions.add(
                Permission.objects.get(content_type__app_label=label, codename=codename)
            )
        client = Client()
        client.force_login(user)
        return client

    return sign_in


def execute(statement: str, *parameters: Any) -> None:
    """Run a statement in the test's own transaction."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


def make_job(**fields: Any) -> Job:
    """A row of `jobs`."""
    return Job.objects.create(**{"stage": "clip", **fields})


def claimed(worker: str = "worker:1:a", **fields: Any) -> Lease:
    """The lease of a fresh job of that worker."""
    lease = jobreaper.claim(Job, make_job(**fields).pk, worker=worker)
    assert lease is not None
    return lease


def job_of(lease: Lease) -> Job:
    """The row as it is now."""
    return Job.objects.get(pk=lease.pk)
