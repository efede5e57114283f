"""Each statement for tables of every shape, whole, as PostgreSQL gets it without the comments:
`make golden` writes the files anew, and the difference is what a change to the SQL comes to.
"""

import os
from pathlib import Path

import pytest
from django.test import override_settings

from tests.golden.shapes import SHAPES

HERE = Path(__file__).parent
REWRITE = os.environ.get("GOLDEN") == "rewrite"
LONGEST = 400

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("shape", SHAPES)
def test_statements_are_as_their_golden_files_say(shape: str) -> None:
    table, texts, settings = SHAPES[shape]
    with override_settings(JOBREAPER=settings):
        sent = {f"{name}.sql": f"{text}\n" for name, text in texts(table)}
    folder = HERE / shape
    if REWRITE:
        folder.mkdir(exist_ok=True)
        for file in folder.glob("*.sql"):
            file.unlink()
        for name, text in sent.items():
            (folder / name).write_text(text, encoding="utf-8")
    golden = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.sql")}
    assert golden.keys() == sent.keys()
    for name, text in sent.items():
        assert text == golden[name], f"{shape}/{name}: `make golden`, and read the difference"
