"""Every text that people see is marked for translation, and the German catalogue has them all."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.translation import override
from django.utils.translation.template import templatize

import jobreaper
from project.media.models import Job
from tests.admin.conftest import superuser  # noqa: F401  a fixture

PACKAGE = Path(jobreaper.__file__).parent
CATALOGUE = PACKAGE / "locale" / "de" / "LC_MESSAGES"

CALLS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2, "ngettext_lazy": 2}
CALL = re.compile(r"\b(_|gettext|ngettext)\(\s*(u?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))")
PLACE = re.compile(r"%\(\w+\)[sdr]")


def texts_of_code(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for argument in node.args[: CALLS.get(node.func.id, 0)]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def texts_of_template(file: Path) -> Iterator[str]:
    for _, text in CALL.findall(templatize(file.read_text(), origin=file.name)):
        yield ast.literal_eval(text)


def texts() -> set[str]:
    """Every text of the package that is marked."""
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        if "migrations" not in file.parts:
            found.update(texts_of_code(file))
    for file in PACKAGE.rglob("*.html"):
        found.update(texts_of_template(file))
    return found


def german() -> dict[str, list[str]]:
    """The catalogue as it is read: each text with its translations, two where it has a plural."""
    with (CATALOGUE / "django.mo").open("rb") as file:
        read = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    found: dict[str, list[str]] = {}
    for key, value in read.items():
        if key:
            found.setdefault(key[0] if isinstance(key, tuple) else key, []).append(value)
    return found


def test_no_text_is_missing_from_the_german_catalogue() -> None:
    """`make messages` adds those that are, to be translated by hand."""
    plurals = {
        node.args[1].value
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.startswith("ngettext")
        and isinstance(node.args[1], ast.Constant)
    }
    there = german()
    missing = {text for text in texts() if text and text not in there and text not in plurals}
    assert missing == set()
    assert len(there) > 400


def test_translations_have_the_same_places_for_values() -> None:
    for text, translated in german().items():
        for each in translated:
            assert each, text
            assert set(PLACE.findall(each)) == set(PLACE.findall(text)), text


def test_the_compiled_catalogue_is_that_of_its_source() -> None:
    """`make messages` compiles it."""
    source = (CATALOGUE / "django.po").read_text()
    written: set[str] = set()
    for block in source.split("\n\n")[1:]:
        found = re.findall(r'^msgid ((?:".*"\n?)+)', block, re.MULTILINE)
        if found and not block.startswith("#~"):
            written.add("".join(ast.literal_eval(line) for line in found[0].splitlines()))
    assert written == set(german())
    assert "fuzzy" not in source


@pytest.mark.django_db
def test_pages_are_german_for_those_who_read_german(superuser: Client) -> None:  # noqa: F811
    job = Job.objects.create(stage="clip")
    jobreaper.pause("clip", model=Job, by="ada")
    locale = "django.middleware.locale.LocaleMiddleware"
    from django.conf import settings

    # The middleware leaves its language behind.
    with override(None), override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, locale]):
        page = superuser.get(
            reverse("admin:jobreaper_reaper_changelist"), headers={"accept-language": "de"}
        )
    assert "Nichts steckt fest." in page.content.decode()
    with override("de"):
        assert "clip wurde von ada um" in jobreaper.explain(job).headline
