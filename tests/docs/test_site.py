"""The documentation site has every page, and so has the overview for language models."""

import re
from pathlib import Path

from tests.docs import markdown

PAGES = sorted(path.name for path in (markdown.ROOT / "docs").glob("*.md"))
FROM_THE_TOP = ["changelog.md", "contributing.md", "docstrings.md", "index.md"]


def pages_in(file: Path) -> list[str]:
    """The pages that a file names."""
    text = file.read_text()
    return sorted(re.findall(r"[ (\[]([a-z-]+\.md)\b", text.partition("\nnav:")[2] or text))


def test_the_navigation_has_every_page_once() -> None:
    assert pages_in(markdown.ROOT / ".mkdocs.yml") == sorted([*PAGES, *FROM_THE_TOP])


def test_the_overview_for_language_models_has_every_page_once() -> None:
    assert pages_in(markdown.ROOT / "docs" / "llms.txt") == PAGES
