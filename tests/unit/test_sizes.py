"""Files and functions are short enough to be held in one's head."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MOST_SQL_FILES = 70


def files(*patterns: str) -> dict[str, str]:
    """The text of what people write, by path; other statements are rendered from it."""
    found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


def test_no_file_has_more_than_400_lines() -> None:
    texts = files("jobreaper/**/*.py", "jobreaper/**/*.sql", "project/**/*.py", "tests/**/*.py")
    lengths = {path: len(text.splitlines()) for path, text in texts.items()}
    assert len(lengths) > 200
    assert {path: n for path, n in lengths.items() if n > LONGEST_FILE} == {}


def test_no_function_of_the_package_has_more_than_60_lines() -> None:
    lengths = {
        f"{path}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, text in files("jobreaper/**/*.py", "project/**/*.py").items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 500
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def test_the_package_has_at_most_70_sql_files() -> None:
    assert 20 < len(files("jobreaper/**/*.sql")) <= MOST_SQL_FILES
