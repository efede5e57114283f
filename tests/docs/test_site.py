"""The documentation site has every page, and so has the overview for language models."""

import hashlib
import re
import runpy
from pathlib import Path

from tests.docs import markdown

PAGES = sorted(path.name for path in (markdown.ROOT / "docs").glob("*.md"))
FROM_THE_TOP = ["changelog.md", "contributing.md", "docstrings.md", "index.md"]


def pages_in(file: Path) -> list[str]:
    """The pages that a file names."""
    text = file.read_text()
    return sorted(re.findall(r"[ (\[]([a-z0-9-]+\.md)\b", text.partition("\nnav:")[2] or text))


def test_the_navigation_has_every_page_once() -> None:
    assert pages_in(markdown.ROOT / ".mkdocs.yml") == sorted([*PAGES, *FROM_THE_TOP])


def test_the_overview_for_language_models_has_every_page_once() -> None:
    assert pages_in(markdown.ROOT / "docs" / "llms.txt") == PAGES


def test_every_diagram_has_the_pictures_that_were_drawn_of_it() -> None:
    pages = (markdown.ROOT / "docs").glob("*.md")
    texts = re.findall(
        r"^```mermaid\n(.*?)^```$", "".join(page.read_text() for page in pages), re.M | re.S
    )
    digests = [hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts]
    drawn = (markdown.ROOT / "docs" / "images" / "diagrams").iterdir()
    assert sorted(picture.name for picture in drawn) == sorted(
        f"{digest}-{theme}.svg" for digest in digests for theme in ("light", "dark")
    ), "make diagrams"


def test_the_picture_of_the_queues_is_that_of_the_table() -> None:
    bars = runpy.run_path(str(markdown.ROOT / "docs" / "site" / "bars.py"))
    assert bars["PICTURE"].read_text() == bars["drawn"](), "python docs/site/bars.py"
