"""The reference pages, compared with the code they are about."""

import ast
import inspect
import itertools
import json
import re
import tomllib
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import BaseCommand
from django.dispatch import Signal

import jobreaper
from jobreaper import conf, signals, values
from jobreaper.base import LeasedJob
from jobreaper.management.commands import pause, prune, reaper_sql, resume, work
from jobreaper.management.commands.reap import Command, _as_dict
from jobreaper.reaper import PassResult
from jobreaper.states import TRANSITIONS
from tests.docs import markdown

PYPROJECT = tomllib.loads((markdown.ROOT / "pyproject.toml").read_text())
PACKAGE = Path(jobreaper.__file__).parent


def first_code(row: list[str]) -> str:
    return markdown.code(row[0])[0]


def table_keys(text: str) -> list[str]:
    """What the first column of every table in `text` writes as code."""
    return [word for row in markdown.rows(text) for word in markdown.code(row[0])]


class TestHowItWorks:
    TRANSITIONS = {(str(a), str(b)) for a, targets in TRANSITIONS.items() for b in targets}
    TEXT = markdown.section(markdown.page("how-it-works"), "The life of a job")

    def test_the_table_has_every_transition_and_no_other(self) -> None:
        written = [tuple(markdown.code(source + target)) for source, target, _ in self.rows()]
        assert sorted(written) == sorted(self.TRANSITIONS)

    def test_the_diagram_says_the_same(self) -> None:
        [diagram] = markdown.blocks(self.TEXT, "mermaid")
        assert set(re.findall(r"(\w+) --> (\w+):", diagram.code)) == self.TRANSITIONS

    def rows(self) -> list[list[str]]:
        return markdown.rows(self.TEXT)


class TestSettings:
    PAGE = markdown.page("settings")
    ROWS = [row for row in markdown.rows(markdown.section(PAGE, "Keys")) if len(row) == 5]
    OTHERS = [row for row in markdown.rows(markdown.section(PAGE, "Keys")) if len(row) == 4]

    def test_every_key_is_there_and_no_other(self) -> None:
        written = [markdown.code(row[0] + row[1]) for row in self.ROWS]
        written += [markdown.code(row[0]) for row in self.OTHERS]
        assert sorted(itertools.chain(*written)) == sorted(conf.DICT_KEYS)

    @pytest.mark.parametrize("row", ROWS, ids=first_code)
    def test_every_name_is_read_from_the_environment(self, row: list[str]) -> None:
        for name in markdown.code(row[0] + row[1]):
            [problem] = conf.read({}, {name: "nonsense"})[1]
            assert name in problem.message

    def test_the_token_is_read_from_its_own_variable(self) -> None:
        [(_, variable, *_)] = [row for row in self.OTHERS if first_code(row) == "TICK_TOKEN"]
        assert conf.read({}, {markdown.code(variable)[0]: "secret"})[0].tick_token == "secret"

    @pytest.mark.parametrize("row", ROWS, ids=first_code)
    def test_every_default_is_what_counts_without_a_setting(self, row: list[str]) -> None:
        default = markdown.code(row[2])
        assert default or row[2] == "not set"
        if default:
            given = {first_code(row): float(default[0])}
            if first_code(row) == "JOB_MAX_ATTEMPTS":
                given = {"JOB_MAX_ATTEMPTS": int(default[0])}
            assert conf.read(given, {}) == conf.read({}, {})

    @pytest.mark.parametrize("row", ROWS, ids=first_code)
    def test_every_key_counts(self, row: list[str]) -> None:
        assert conf.read({first_code(row): 17}, {})[0] != conf.read({}, {})[0]

    def test_every_key_of_a_stage_is_there(self) -> None:
        keys = table_keys(markdown.section(self.PAGE, "Stages"))
        assert sorted(keys) == sorted(values.STAGE_PARSERS)

    def test_every_default_of_a_stage_is_what_counts(self) -> None:
        for row in markdown.rows(markdown.section(self.PAGE, "Stages")):
            default = markdown.code(row[1])
            if default and default[0][0] in '"N':
                given = {"STAGES": {"clip": {first_code(row): ast.literal_eval(default[0])}}}
                assert conf.read(given, {}) == conf.read({}, {})

    def test_retention_is_as_it_counts(self) -> None:
        rows = markdown.rows(markdown.section(self.PAGE, "Retention"))
        written = {first_code(row): ast.literal_eval(markdown.code(row[1])[0]) for row in rows}
        assert written == dict(conf.DEFAULT_RETENTION)


class TestChecks:
    def test_every_id_has_a_section_and_no_other(self) -> None:
        sources = [file.read_text() for file in PACKAGE.rglob("*.py")]
        ids = {found for text in sources for found in re.findall(r"\b[EW]\d{3}\b", text)}
        assert sorted(markdown.headings(markdown.page("checks"), 2)) == sorted(ids)


Function = ast.FunctionDef | ast.AsyncFunctionDef


class TestApi:
    PAGE = markdown.page("api")
    SIGNATURES = [
        node
        for _, code in markdown.blocks(PAGE, "python")
        for node in ast.parse(code).body
        if isinstance(node, Function)
    ]

    def test_every_public_name_has_a_section_and_no_other(self) -> None:
        assert sorted(markdown.headings(self.PAGE, 3)) == sorted(jobreaper.__all__)

    @pytest.mark.parametrize("written", SIGNATURES, ids=lambda node: node.name)
    def test_signatures_are_as_in_the_code(self, written: Function) -> None:
        function = getattr(jobreaper, written.name)
        assert parameters(written) == signature(function)
        assert isinstance(written, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(function)

    def test_every_function_has_its_signature(self) -> None:
        functions = {n for n in jobreaper.__all__ if inspect.isroutine(getattr(jobreaper, n))}
        assert {node.name for node in self.SIGNATURES} == functions

    def test_calls_of_a_lease_are_as_in_the_code(self) -> None:
        text = markdown.section(self.PAGE, "Lease")
        calls = [word for word in table_keys(text) if "(" in word]
        for call in calls:
            [written] = ast.parse(f"def {call}: ...").body
            assert isinstance(written, ast.FunctionDef)
            assert ["self", *parameters(written)] == signature(
                getattr(jobreaper.Lease, written.name)
            )
        assert len(calls) == 7

    def test_every_column_of_a_job_is_there(self) -> None:
        text = markdown.section(self.PAGE, "LeasedJob")
        columns = [word for word in table_keys(text) if "(" not in word]
        assert columns == [field.name for field in LeasedJob._meta.local_fields]

    def test_every_attribute_of_a_pass_result_is_there(self) -> None:
        written = table_keys(markdown.section(self.PAGE, "PassResult"))
        there = [name for name in dir(PassResult(tables={})) if name[0] != "_"]
        assert sorted(written) == sorted(set(there) - {"errors"})


def parameters(written: Function) -> list[str]:
    """Each parameter with its default, and a bare star where keywords begin."""
    return [part.strip() for part in ast.unparse(written.args).split(",") if part.strip()]


def signature(function: Any) -> list[str]:
    """The same of a function."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        default = parameter.default
        text = default.__name__ if isinstance(default, type) else None
        if isinstance(default, Enum):
            text = str(type(default).__name__) + "." + default.name
        shown = "" if default is parameter.empty else f"={text or repr(default)}"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        names.append(stars + parameter.name + shown)
    return names


class TestReapCommand:
    PAGE = markdown.page("reap-command")

    def test_every_option_is_there_and_no_other(self) -> None:
        ours = options(Command()) - options(BaseCommand())
        written = table_keys(markdown.section(self.PAGE, "Options"))
        assert {word.split()[0] for word in written} == ours

    def test_json_has_the_keys_that_are_printed(self) -> None:
        [block] = markdown.blocks(self.PAGE, "json")
        assert json.loads(block.code).keys() == _as_dict(PassResult()).keys()


@pytest.mark.parametrize(
    ("command", "page", "heading"),
    [
        (pause.Command(), "queue", "Limits and pauses"),
        (prune.Command(), "retention", "Retention"),
        (reaper_sql.Command(), "sql-functions", "Install"),
        (resume.Command(), "queue", "Limits and pauses"),
        (work.Command(), "queue", "Running jobs"),
    ],
    ids=lambda value: value.__module__.split(".")[-1] if isinstance(value, BaseCommand) else "",
)
def test_every_option_of_the_other_commands_is_there(
    command: BaseCommand, page: str, heading: str
) -> None:
    text = markdown.section(markdown.page(page), heading)
    assert options(command) - options(BaseCommand()) <= set(re.findall(r"--[a-z][a-z-]*", text))


def options(command: Any) -> set[str]:
    parser = command.create_parser("manage.py", "any")
    return {name for action in parser._actions for name in action.option_strings}


class TestSignals:
    TEXT = markdown.section(markdown.page("events"), "Signals")

    def test_every_signal_is_there_and_no_other(self) -> None:
        there = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
        assert sorted(table_keys(self.TEXT)) == sorted(there)


class TestDependencies:
    def test_every_dependency_has_its_reason(self) -> None:
        project = PYPROJECT["project"]
        groups = [project["dependencies"], *project["optional-dependencies"].values()]
        names = {re.match(r"[\w-]+(\[[\w,]+\])?", entry)[0] for entry in itertools.chain(*groups)}  # type: ignore[index]
        others = sorted(name for name in names if not name.startswith("jobreaper["))
        assert sorted(table_keys(markdown.page("dependencies"))) == others


class TestCompatibility:
    TEXT = markdown.section((markdown.ROOT / "README.md").read_text(), "Compatibility")

    @pytest.mark.parametrize("what", ["Python", "Django"])
    def test_versions_are_those_of_the_package(self, what: str) -> None:
        [versions] = [row[1] for row in markdown.rows(self.TEXT) if row[0] == what]
        kind = {"Python": "Programming Language :: Python", "Django": "Framework :: Django"}[what]
        classifiers = PYPROJECT["project"]["classifiers"]
        found = re.findall(rf"^{kind} :: (\d+\.\d+)$", "\n".join(classifiers), re.MULTILINE)
        assert versions.split(", ") == found


class TestArchitecture:
    PAGE_FILE = markdown.ROOT / "docs" / "architecture.md"
    PAGE = markdown.page("architecture")

    def test_every_module_is_in_its_place(self) -> None:
        modules = {
            path.stem
            for path in PACKAGE.iterdir()
            if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem[0] != "_"
        }
        assert sorted(table_keys(markdown.section(self.PAGE, "Layers"))) == sorted(modules)

    @pytest.mark.parametrize(
        "page", [markdown.ROOT / "CONTRIBUTING.md", PAGE_FILE], ids=lambda page: page.stem
    )
    def test_every_path_that_is_named_is_there(self, page: Path) -> None:
        paths = re.findall(r"`((?:jobreaper|project|tests|docs)/[^`<*]*)`", page.read_text())
        files = re.findall(r"`(\w+/\w+\.sql)`", page.read_text())
        paths += [f"jobreaper/sql/{name}" for name in files]
        assert [path for path in paths if not (markdown.ROOT / path).exists()] == []
        assert len(paths) > 10


class TestFaults:
    ROWS = markdown.rows(markdown.page("faults"))

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
    def test_the_test_that_is_named_exists(self, row: list[str]) -> None:
        for named in markdown.code(row[-1]):
            path, *names = named.split("::")
            tree: Any = ast.parse((markdown.ROOT / "tests" / path).read_text())
            for name in names:
                [tree] = [node for node in tree.body if getattr(node, "name", None) == name]
            assert names
