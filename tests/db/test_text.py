"""Text as PostgreSQL can store it, and errors in words."""

from collections.abc import Callable

import pytest
from django.db import (
    OperationalError,
    connection,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobreaper import db
from tests.db.sessions import run
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("naïve – 木", "naïve – 木"),
        ("a\x00b", "a\\x00b"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        (ValueError("boom"), "boom"),
        (None, "None"),
    ],
)
def test_text_is_stored_readably(text: object, stored: str) -> None:
    assert db.storable(text) == stored


def test_megabytes_of_text_are_cut_and_the_rest_is_counted() -> None:
    text = db.storable("x" * 5_000_000)
    assert text == "x" * 10_000 + "... (4990000 characters cut)"


def test_a_text_of_just_the_longest_length_is_kept() -> None:
    assert db.storable("x" * 10_000) == "x" * 10_000


@given(st.text(st.characters(exclude_categories=())))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_text_postgresql_takes_it_and_gives_it_back(text: str) -> None:
    stored = db.storable(text)
    statement = "SELECT %(text)s::text, jsonb_build_object('text', %(text)s::text) ->> 'text'"
    assert db.fetch(connection, statement, {"text": stored}) == [(stored, stored)]


def error_of(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  any: it is judged by the code
        act()
    return caught.value


@pytest.mark.parametrize("statement", ["TABLE no_such_table", "SELECT no_such_column FROM jobs"])
def test_a_database_that_was_not_migrated_is_told_so(statement: str) -> None:
    words = db.in_words(error_of(lambda: run(statement)))
    assert words.endswith(" does not exist: run `manage.py migrate` on this database")


def test_other_errors_are_one_line_in_the_servers_words() -> None:
    assert db.in_words(error_of(lambda: run("SELECT 1 / 0"))) == "division by zero"
    assert db.in_words(OperationalError()) == "OperationalError"


SECRET = "s3cret"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (f"SELECT '{SECRET}'::int", "invalid_text_representation (SQLSTATE 22P02)"),
        (f"SELECT '{SECRET}'::date", "invalid_datetime_format (SQLSTATE 22007)"),
        (f"""SELECT '{{"{SECRET}": }}'::jsonb""", "invalid_text_representation (SQLSTATE 22P02)"),
        (f"SELECT date_trunc('{SECRET}', now())", "invalid_parameter_value (SQLSTATE 22023)"),
        (f"SELECT 1 '{SECRET}'", "syntax_error (SQLSTATE 42601)"),
        (f"SELECT '{SECRET} {SECRET}.'::regclass", "invalid_name (SQLSTATE 42602)"),
        (
            f"SELECT '{SECRET}'::jobreaper_words",
            'value for domain jobreaper_words violates check constraint "jobreaper_short"',
        ),
        ("INSERT INTO job_events (data) VALUES ('{}')", 'null value in column "job_id"'),
        ("DO 'DECLARE t char(3); BEGIN t = ''long''; END'", "value too long for type character(3)"),
        # Words of one's own.
        ("DO 'BEGIN RAISE ''my words\nbut these''; END'", "my words"),
        ("DO 'BEGIN RAISE ''my words'' USING ERRCODE = ''22023''; END'", "my words"),
        ("DO $$BEGIN RAISE '%%', repeat('x', 9999); END$$", "x" * 1000),
        # The driver's.
        ("SELECT '20000-01-01'::date", "date too large (after year 10K)"),
    ],
)
def test_an_error_is_told_without_values(statement: str, said: str, sql: Sql) -> None:
    sql("CREATE DOMAIN jobreaper_words AS text CONSTRAINT jobreaper_short CHECK (value = '')")
    try:
        error = error_of(lambda: db.fetch(connection, statement, {}))
    finally:
        sql("DROP DOMAIN jobreaper_words")
    for words in (db.in_words(error), db.storable(error), str(error), str(error.__cause__)):
        assert words.startswith(said)
        assert SECRET not in words
        assert "20000" not in words
        assert len(words) <= 1000
