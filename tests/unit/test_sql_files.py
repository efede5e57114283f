"""A ``.sql`` file has the statements of one subject, each after a line with its name."""

import pytest

from jobreaper import sql

TWO = """-- Words for a reader, before the first name.

-- name: first
-- What it is for.
SELECT 1


-- name: second
SELECT 2
"""


def test_a_statement_goes_from_its_name_to_the_next_and_keeps_its_comment() -> None:
    found = sql.by_name({"two": TWO})
    assert found == {"first": "-- What it is for.\nSELECT 1", "second": "SELECT 2"}


def test_a_file_without_names_is_one_statement_with_the_name_of_the_file() -> None:
    text = "-- The name: is not one here.\nSELECT 1\n"
    assert sql.by_name({"one": text}) == {"one": text.strip()}


@pytest.mark.parametrize("line", ["--name:first", "--  name:  first  ", "-- name:\tfirst"])
def test_spaces_do_not_hide_a_name(line: str) -> None:
    assert sql.by_name({"one": f"{line}\nSELECT 1"}) == {"first": "SELECT 1"}


@pytest.mark.parametrize("other", ["-- name: second\nSELECT 3", "SELECT 3"], ids=["name", "file"])
def test_two_statements_of_one_folder_cannot_have_the_same_name(other: str) -> None:
    with pytest.raises(ValueError, match="the name second"):
        sql.by_name({"two": TWO, "second": other})


def test_a_name_cannot_occur_twice_in_a_file() -> None:
    with pytest.raises(ValueError, match="the name first"):
        sql.by_name({"two": TWO + "-- name: first\nSELECT 3"})


def test_a_statement_before_the_first_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"two\.sql has a statement before"):
        sql.by_name({"two": f"SELECT 0\n{TWO}"})


@pytest.mark.parametrize("path", ["statements/presence_look", "fragments/due_of_priority"])
def test_code_finds_a_statement_by_folder_and_name_and_no_name_is_sent(path: str) -> None:
    assert "SELECT" in sql.source(path)
    assert "name:" not in sql.source(path)


def test_a_file_with_names_is_not_itself_a_statement() -> None:
    with pytest.raises(KeyError):
        sql.source("statements/presence")


def test_a_statement_is_sent_without_its_comments_and_its_indentation() -> None:
    written = """
    -- It's a "comment", with quotes.
    SELECT 'it''s  -- one text'   -- Another comment.
           '  of two lines',
           "a  -- name", %(given)s::text
    """
    sent = """SELECT 'it''s  -- one text'
'  of two lines',
"a  -- name", %(given)s::text"""
    assert sql.without_comments(written) == sent
