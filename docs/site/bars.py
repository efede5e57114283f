"""Draws the bars of docs/measured.md, for `python docs/site/bars.py`.

The page's table is all that it reads: if that changes, draw the picture anew.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = DOCS / "measured.md"
PICTURE: Final = DOCS / "images" / "drain.svg"

TABLE: Final = "| queue | jobs/s, one process | jobs/s, two processes |"

WIDTH, LABELS, LONGEST = 720, 170, 460
TOP, BAR, ROW = 52, 13, 40

STYLE: Final = """
text { font: 14px sans-serif; fill: #1f2328 }
.note { font-size: 12px; fill: #59636e }
.one { fill: #2f6fdb } .two { fill: #14858a }
.other .one { fill: #8c959f } .other .two { fill: #b9c0c7 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 }
  .one { fill: #6ea4ff } .two { fill: #4cc5c9 }
  .other .one { fill: #8b949e } .other .two { fill: #5d6670 }
}
"""


def rows() -> list[tuple[str, float, float]]:
    """Return the lines of the page's table: a queue and its two figures."""
    lines = PAGE.read_text(encoding="utf-8").split(TABLE, 1)[1].splitlines()[2:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        one, two = (float(figure.replace(",", "")) for figure in figures)
        found.append((name, one, two))
    return found


def drawn() -> str:
    """Return the picture as SVG."""
    table = rows()
    scale = LONGEST / max(max(one, two) for _, one, two in table)
    height = TOP + ROW * len(table)
    told = "; ".join(f"{name} {one:,.0f} and {two:,.0f}" for name, one, two in table)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Jobs a second with one and with two processes: {escape(told)}">',
        f"<style>{STYLE}</style>",
        '<text x="0" y="16">Jobs that do nothing, a second</text>',
        '<text class="note" x="0" y="36">upper bar: one worker process; lower bar: two</text>',
    ]
    for place, (name, one, two) in enumerate(table):
        top = TOP + ROW * place
        parts.append(f'<g class="{"own" if name == "jobreaper" else "other"}">')
        parts.append(f'<text x="0" y="{top + BAR + 5}">{escape(name)}</text>')
        for kind, figure, at in (("one", one, top), ("two", two, top + BAR + 2)):
            long = max(1, round(figure * scale))
            beside, line = LABELS + long + 6, at + BAR - 2
            parts.append(
                f'<rect class="{kind}" x="{LABELS}" y="{at}" width="{long}" height="{BAR}"/>'
                f'<text class="note" x="{beside}" y="{line}">{figure:,.0f}</text>'
            )
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
