"""Draws the Mermaid diagrams of docs/ as pictures, for `make diagrams`.

A site that draws them in the reader's browser loads Mermaid from elsewhere. So they are drawn once,
by Chromium (Debian package ``chromium``), and named by a digest of their text: a diagram that has
changed since has no picture, and the build of the site says so.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = DOCS / "images" / "diagrams"

FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# A picture for each of the site's themes, and the theme that Mermaid has for it.
THEMES: Final = {"light": "neutral", "dark": "dark"}

_DRAW: Final = """
async ([text, theme, id]) => {
    mermaid.initialize({startOnLoad: false, theme, fontFamily: "sans-serif",
                        deterministicIds: true});
    return (await mermaid.render(id, text)).svg;
}
"""


def picture_of(text: str, theme: str) -> Path:
    """Return the file of a diagram's picture."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return PICTURES / f"{digest}-{theme}.svg"


def main(mermaid: Path) -> None:
    """Draw all diagrams with this file of Mermaid, and delete the pictures of former ones."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    wanted: set[Path] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        for text in (text for file in sorted(DOCS.glob("*.md")) for text in _diagrams(file)):
            for theme in THEMES:
                file = picture_of(text, theme)
                file.write_text(_drawn(page, text, THEMES[theme], f"d{file.stem}"))
                wanted.add(file)
        browser.close()
    for former in set(PICTURES.glob("*.svg")) - wanted:
        former.unlink()


def _diagrams(file: Path) -> list[str]:
    return FENCE.findall(file.read_text())


def _drawn(page: Any, text: str, theme: str, name: str) -> str:
    svg = str(page.evaluate(_DRAW, [text, theme, name]))
    # An image has the size that it names; a share of nothing is not one.
    width, height = re.findall(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg)[0]
    size = f'width="{float(width):.0f}" height="{float(height):.0f}"'
    return re.sub(r'(<svg[^>]*?) width="100%"', rf"\1 {size}", svg, count=1) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
