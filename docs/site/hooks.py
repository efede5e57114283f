"""Joins what is at the top of the repository with the pages of docs/, for `make docs`.

README, CONTRIBUTING and CHANGELOG become pages, links between them and docs/ are rewritten, links
to code become its path, diagrams the pictures that `make diagrams` has drawn, and a page has the
docstrings of the public names.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

# A hook is loaded as a file of no package.
sys.path.insert(0, str(Path(__file__).parent))
from diagrams import FENCE, PICTURES, THEMES, picture_of

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for name, page in TOP.items():
        text = _rewritten((ROOT / name).read_text(), in_docs=False)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "docstrings.md", content=_docstrings()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page of docs/, and show its diagrams."""
    is_generated = page.file.generated_by is not None
    return markdown if is_generated else _rewritten(FENCE.sub(_pictured, markdown), in_docs=True)


def _pictured(fence: re.Match[str]) -> str:
    """Return a diagram's picture for each theme. One that is not there fails the build, as any
    broken link does.
    """
    above = re.findall(r"^#+ (.*)$", fence.string[: fence.start()], re.MULTILINE)
    folder = PICTURES.relative_to(ROOT / "docs").as_posix()
    return "\n".join(
        f"![{above[-1]}]({folder}/{picture_of(fence[1], theme).name}#only-{theme})"
        for theme in THEMES
    )


def _rewritten(text: str, *, in_docs: bool) -> str:
    def link(found: re.Match[str]) -> str:
        image, said, target = found.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        base = ROOT / "docs" if in_docs else ROOT
        file = (base / path).resolve()
        if not file.exists():
            return found[0]  # which the strict build complains of
        if file.parent == ROOT and file.name in TOP:
            return f"{image}[{said}]({TOP[file.name]}{mark}{anchor})"
        if file.is_relative_to(ROOT / "docs"):
            return f"{image}[{said}]({file.relative_to(ROOT / 'docs')}{mark}{anchor})"
        # Code, which the site does not have.
        return said if said.startswith("`") else f"{said} (`{file.relative_to(ROOT)}`)"

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _docstrings() -> str:
    tree = ast.parse((ROOT / "jobreaper" / "__init__.py").read_text())
    [homes] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOMES"
    ]
    lines = ["# Docstrings", "", "The public names of `jobreaper`, as the code describes them."]
    for module, names in homes.items():
        for name in names.split():
            lines += ["", f"::: jobreaper.{module}.{name}"]
    return "\n".join(lines)
