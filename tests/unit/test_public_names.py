"""``import jobreaper`` is cheap, and every public name is there."""

import subprocess
import sys

import pytest

import jobreaper

LAZY = """
import sys
import jobreaper
assert "django.db" not in sys.modules, "importing jobreaper must not load Django's models"
from jobreaper import LeaseLost, worker_id
assert worker_id()
"""


def test_the_package_is_imported_before_djangos_apps_are_loaded() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True)


@pytest.mark.parametrize("name", jobreaper.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(jobreaper, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'laese'"):
        _ = jobreaper.laese
