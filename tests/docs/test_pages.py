"""What every page must hold to: its code runs, its links lead somewhere."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from jobreaper import conf
from jobreaper.management.commands.reap import Command
from tests import check_docs
from tests.docs import markdown

PYTHON = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in markdown.PAGES
    for number, (_, code) in enumerate(markdown.blocks(page.read_text(), "python"))
]
PAGES = [pytest.param(page, id=page.stem) for page in markdown.PAGES]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    assert check_docs.dead_links(page) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_reached_from_the_readme(page: Path) -> None:
    readme = markdown.ROOT / "README.md"
    links = {(readme.parent / link).resolve() for link in markdown.links(readme.read_text())}
    assert page == readme or page in links


@pytest.mark.parametrize("code", PYTHON)
def test_python_is_python(code: str) -> None:
    ast.parse(code)


@pytest.mark.parametrize("code", PYTHON)
def test_what_python_imports_of_jobreaper_is_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("jobreaper"):
            module = import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name)


@pytest.mark.parametrize("code", PYTHON)
def test_settings_in_python_have_no_problem(code: str) -> None:
    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "JOBREAPER":
            assert conf.read(ast.literal_eval(node.value), {})[1] == []


@pytest.mark.parametrize("page", PAGES)
def test_reap_commands_have_options_that_exist(page: Path) -> None:
    def refuse(message: str) -> Any:
        raise AssertionError(message)

    parser = Command().create_parser("manage.py", "reap")
    parser.error = refuse  # type: ignore[method-assign]
    for command in markdown.commands(page.read_text()):
        program, _, arguments = f"{command} ".partition(" reap ")
        if program.endswith("manage.py"):
            parser.parse_args(arguments.split())
