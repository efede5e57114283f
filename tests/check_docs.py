"""Fail when a relative link or an anchor in the documentation leads nowhere."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def pages() -> list[Path]:
    """The pages whose links are checked."""
    at_the_top = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    return [*at_the_top, *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The fragments that a link into `page` may use, named as GitHub names them."""
    text = FENCE.sub("", page.read_text())
    found: set[str] = set(ANCHOR.findall(text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        name, n = slug, 0
        while name in found:
            n += 1
            name = f"{slug}-{n}"
        found.add(name)
    return found


def dead_links(page: Path) -> list[str]:
    """The links of `page` that do not resolve."""
    dead = []
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    for inline, reference in LINK.findall(text):
        link = inline or reference
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, fragment = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        missing = not target.is_relative_to(ROOT) or not target.exists()
        if missing or (fragment and target.suffix == ".md" and fragment not in anchors(target)):
            dead.append(link)
    return dead


def main() -> int:
    """Print every dead link; return the exit code."""
    dead = [f"{page.relative_to(ROOT)}: {link}" for page in pages() for link in dead_links(page)]
    print(*dead, sep="\n", end="\n" if dead else "")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
