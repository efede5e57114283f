"""The host project's settings, as the environment shapes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from project.database import database_from_url


def test_a_tcp_url_fills_djangos_keys_and_the_rest_goes_to_options() -> None:
    entry = database_from_url("postgres://me:p%40ss@db.example:5433/jobs?sslmode=require")
    assert entry["ENGINE"] == "django.db.backends.postgresql"
    assert (entry["USER"], entry["PASSWORD"]) == ("me", "p@ss")
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("db.example", "5433", "jobs")
    assert entry["OPTIONS"] == {"sslmode": "require"}


def test_a_socket_url_names_its_directory() -> None:
    entry = database_from_url("postgresql:///jobs?host=/run/my%20sockets")
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("/run/my sockets", "", "jobs")


def test_another_databases_url_is_refused_without_showing_its_password() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DATABASE_URL .* not 'mysql': postgresql://"):
        database_from_url("mysql://me:secret@host/jobs")


def test_a_malformed_url_is_refused_with_an_example() -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL cannot be read"):
        database_from_url("postgresql://[half")


@pytest.mark.parametrize("password", ["s3%cret", "s3[cret%zz"])
def test_a_malformed_url_is_refused_without_showing_its_password(password: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL cannot be read") as refused:
        database_from_url(f"postgresql://me:{password}@host/jobs")
    assert "cret" not in str(refused.value)


def settings_with(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import project.settings"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"JOBREAPER_NO_SERVERS": "1"} | variables,
        capture_output=True,
        text=True,
    )


def test_the_development_key_is_refused_outside_development() -> None:
    assert "DJANGO_SECRET_KEY must be set" in settings_with(DJANGO_DEBUG="0").stderr
    assert settings_with(DJANGO_DEBUG="0", DJANGO_SECRET_KEY="long and random").returncode == 0
