"""Globs, as people know them from shells and other tools."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.redisq.producer.globs import Globs


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("**/*", "a"),
        ("**/*", "a/b/c"),
        ("**/*", ".hidden/.file"),
        ("**/*.tmp", "x.tmp"),
        ("**/*.tmp", "a/b/x.tmp"),
        ("**/*", "a\nb"),
        ("*.pdf", "a.pdf"),
        ("a/**", "a/b/c"),
        ("a/**/c", "a/c"),
        ("a/**/c", "a/b/b/c"),
        ("**/b/**/d", "a/b/c/b/d"),
        ("a?c", "abc"),
        ("[a-c]/x", "b/x"),
        ("**/[!.]*", "a/b"),
        ("**/.DS_Store", ".DS_Store"),
    ],
)
def test_a_glob_matches(glob: str, path: str) -> None:
    assert Globs([glob]).match(path)


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("*", "a/b"),
        ("*.pdf", "a/b.pdf"),
        ("**/*.tmp", "a.tmp/b"),
        ("**/*.tmp", "x.tmp2"),
        ("a?c", "a/c"),
        ("[!b]/x", "b/x"),
        ("a/*/c", "a/b/b/c"),
        ("**/.DS_Store", "a.DS_Store"),
        ("*.PDF", "a.pdf"),
        ("a/**", "a"),
    ],
)
def test_a_wildcard_stays_within_its_name(glob: str, path: str) -> None:
    assert not Globs([glob]).match(path)


def test_no_globs_match_nothing() -> None:
    assert not Globs([]).match("a")


NAMES = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4)
GLOBS = st.lists(st.sampled_from(["**", "*", "a", "b*", "?b", "[a]"]), min_size=1, max_size=5)


@given(NAMES, GLOBS)
def test_it_is_what_the_standard_library_finds(names: list[str], glob: list[str]) -> None:
    full_match: Any = getattr(PurePosixPath, "full_match", None)
    if full_match is None:
        pytest.skip("the standard library has it from Python 3.13")
    expected = full_match(PurePosixPath("/".join(names)), "/".join(glob))
    assert Globs(["/".join(glob)]).match("/".join(names)) is expected


def test_many_wildcards_cost_no_more_than_few() -> None:
    assert not Globs(["/".join(["**", "a"] * 30) + "/z"]).match("/".join(["a"] * 1500))
