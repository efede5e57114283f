"""Errors in words, and text as PostgreSQL can store it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from traceback import TracebackException
from typing import Final, TypeVar

from django.db import Error
from psycopg import DataError, NotSupportedError, errors
from psycopg import Error as PsycopgError

from jobreaper.exceptions import JobreaperError

# As Django raises them, and as a handler's own connection does.
DATABASE_ERRORS: Final = (Error, PsycopgError)

E = TypeVar("E", bound=BaseException | None)

# undefined_table, undefined_column
UNMIGRATED_SQLSTATES: Final = frozenset({"42P01", "42703"})

# At most this many rows of a table that cannot be written are named; the others are counted.
MOST_NAMED_ROWS: Final = 20

# Longer texts are cut, because a list would read a fail_reason of megabytes with every row.
LONGEST_TEXT: Final = 10_000

# So is the first line of a database error, whose words may be those of a trigger.
LONGEST_LINE: Final = 1000

# SQLSTATEs for which PostgreSQL's own message quotes values, and not only names: by class (data
# exceptions, code in other languages, other servers), ...
CLASSES_WITH_VALUES: Final = ("22", "2F", "38", "39", "HV")
# ... of other classes: a syntax error quotes a piece of the statement, ...
STATES_WITH_VALUES: Final = ("42601", "42602", "42622")
# ... and those of these classes that quote none: a text that is too long, a division by zero.
STATES_WITHOUT_VALUES: Final = ("22001", "22012")

# What the fragment ``all_written`` makes of rows that were not written. It needs an error without
# PL/pgSQL, so PostgreSQL quotes this as a bad value.
SUPPRESSED: Final = "a trigger or a rule suppressed the write of "
SUPPRESSED_PATTERN: Final = f"{SUPPRESSED}[0-9]+ row[(]s[)]"

# The server's function that carries out RAISE, whose message is its author's.
_RAISED: Final = "exec_stmt_raise"

_DRIVERS_ERRORS: Final = (DataError, NotSupportedError)
_DRIVERS_QUOTE: Final = re.compile(r"[: ]+['\"]")


def in_words(error: Exception, *, is_managed: bool = True) -> str:
    """Return an error as one line, which says what to do if that is known. The package's own errors
    are returned in full. If Django does not manage a table, there may be no migration for a missing
    column.
    """
    if isinstance(error, JobreaperError):
        return str(error)
    line = _line(error)
    if getattr(error.__cause__, "sqlstate", None) in UNMIGRATED_SQLSTATES:
        by_hand = "" if is_managed else ", or add by hand what Django does not manage"
        return f"{line}: run `manage.py migrate` on this database{by_hand}"
    return line


def without_details(error: E) -> E:
    """Reduce each database error in the chain of ``error`` to what may be told, and return
    ``error``.

    The rest (DETAIL, CONTEXT, QUERY, quoted values) would put payloads into tracebacks. The
    error itself is changed and not a copy, because collectors of errors recognize it. Code still
    finds everything in psycopg's ``diag``.
    """
    for link in _database_errors(error):
        link.args = (_line(link),) if link.args else ()
    return error


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, without the details of database
    errors and without the values of variables. The exception is left as it is.
    """
    whole = [(link, link.args) for link in _database_errors(error)]
    try:
        return "".join(TracebackException.from_exception(without_details(error)).format())
    finally:
        for link, args in whole:
            link.args = args


def _database_errors(error: BaseException | None) -> Iterator[Error | PsycopgError]:
    """Yield the database errors in the chain of an exception."""
    links = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        links += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            links += link.exceptions
        if isinstance(link, DATABASE_ERRORS):
            yield link


class details_left_out:
    """Apply ``without_details()`` to an exception that leaves the block."""

    # Not a generator, which would take three times as long around each statement.
    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            without_details(error)


def _line(error: Exception) -> str:
    """Return what may be told of an error: its first line, without values.

    Messages of triggers and functions are their author's words, and kept.
    """
    cause = error if isinstance(error, PsycopgError) else error.__cause__
    line = str(error).strip().split("\n", 1)[0][:LONGEST_LINE] or type(error).__name__
    if not isinstance(cause, PsycopgError):
        return line
    if cause.sqlstate is None:
        # The driver quotes what it cannot read behind its own words.
        return _DRIVERS_QUOTE.split(line)[0] if isinstance(cause, _DRIVERS_ERRORS) else line
    if not quotes_values(cause.sqlstate) or cause.diag.source_function == _RAISED:
        return line
    if ours := re.search(SUPPRESSED_PATTERN, line):
        return ours[0]
    names = {
        "table": cause.diag.table_name,
        "column": cause.diag.column_name,
        "constraint": cause.diag.constraint_name,
        "type": cause.diag.datatype_name,
    }
    named = [f'{what} "{name}"' for what, name in names.items() if name]
    return ", ".join([condition(cause.sqlstate), *named])


def quotes_values(sqlstate: str) -> bool:
    """Return whether PostgreSQL's own messages with this SQLSTATE may quote values, such as
    ``invalid input syntax for type integer: "abc"``.
    """
    if sqlstate in STATES_WITHOUT_VALUES:
        return False
    return sqlstate.startswith(CLASSES_WITH_VALUES) or sqlstate in STATES_WITH_VALUES


def condition(sqlstate: str) -> str:
    """Return the name that PostgreSQL's documentation has for a SQLSTATE, and the SQLSTATE."""
    said = f"SQLSTATE {sqlstate}"
    with suppress(KeyError):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", errors.lookup(sqlstate).__name__)
        said = f"{words.lower()} ({said})"
    return said


def with_condition(line: str) -> str:
    """Return a line of the fragment ``words_of_error`` with the condition's name."""
    marker, _, sqlstate = line.partition(" ")
    return condition(sqlstate) if marker == "SQLSTATE" else line


def storable(text: object) -> str:
    """Return ``str(text)`` in a form that PostgreSQL can store, readable and of limited length. Of
    a database error, that is what may be told of it.

    NUL bytes and lone surrogates are escaped; the number of cut characters is added.
    """
    try:
        whole = _line(text) if isinstance(text, DATABASE_ERRORS) else str(text)
    # The object is not ours, and its ``__str__()`` must not prevent a job from ending.
    except BaseException:
        whole = f"<unprintable {type(text).__qualname__}>"
    cut = len(whole) - LONGEST_TEXT
    kept = whole if cut <= 0 else f"{whole[:LONGEST_TEXT]}... ({cut} characters cut)"
    return kept.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


# NUL, and half a surrogate pair, in JSON.
_UNSTORABLE_IN_JSON: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\u(?:0000|d[89a-f]..))")


def unstorable_in_json(text: str) -> str | None:
    """Return a character, as JSON escapes it, that PostgreSQL cannot store, if ``text`` has one.
    All others must not be escaped.
    """
    found = _UNSTORABLE_IN_JSON.search(text)
    return found and found[1]


def within(encoding: str, value: object) -> object:
    """Return a parameter with escapes for the characters that a database of this encoding cannot
    hold: an error's words must not keep its job from failing. Anything but text is left as it is.
    """
    if isinstance(value, str):
        return value.encode(encoding, "backslashreplace").decode(encoding)
    if isinstance(value, list | tuple):
        return [within(encoding, each) for each in value]
    return value


@cache
def codec(server_encoding: str | None) -> str | None:
    """Return Python's name of an encoding of PostgreSQL, ``None`` for those that hold any text.

    https://www.postgresql.org/docs/current/multibyte.html
    """
    # SQL_ASCII stores the bytes that it is sent.
    if server_encoding in (None, "UTF8", "SQL_ASCII"):
        return None
    name = str(server_encoding).replace("WIN", "cp").replace("KOI8", "koi8-")
    try:
        return codecs.lookup(name).name
    # What is left then is what all of them have.
    except LookupError:
        return "ascii"
