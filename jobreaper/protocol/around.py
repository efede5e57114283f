"""Taking jobs around rows that no UPDATE can write.

One such row makes the statement for many fail. Then each job is taken alone, and refused rows are
remembered, so that later claims and dispatches leave them out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from django.db import DatabaseError, Error

from jobreaper.db import fetch, in_transaction, in_words, may_be_a_rows_fault, retrying
from jobreaper.identity import local_clock
from jobreaper.states import Verb
from jobreaper.tables import JobTable, refused
from jobreaper.tables.keys import key_as_text

T = TypeVar("T")

logger = logging.getLogger("jobreaper.claims")


def is_about_rows(table: JobTable, error: DatabaseError) -> bool:
    """Return whether the statement that raised ``error`` may succeed for other rows, and may be
    sent for them. In a transaction of the caller, only the caller can continue.
    """
    connection = table.connection()
    return not in_transaction(connection) and may_be_a_rows_fault(connection, error)


def take_one_by_one(
    table: JobTable,
    n: int,
    *,
    candidates: tuple[str, Mapping[str, Any]],
    take: Callable[[Any], Iterable[T]],
    into: list[T],
) -> None:
    """Append to ``into`` what ``take`` returns for at most ``n`` jobs, which it is given by key,
    for at most a few seconds. ``candidates`` is the statement that returns the keys, with its
    parameters.

    Raises:
        django.db.Error: the reason is not a row.
    """
    connection = table.connection()
    statement, params = candidates
    ends_at = local_clock() + refused.LONGEST_CLAIM_SEARCH_SEC
    tried: list[Any] = []
    refusals: dict[Any, str] = {}

    def untried(_: bool) -> list[tuple[Any, ...]]:
        given = {**params, "id": None, "n": n - len(into), "skip": tried}
        return fetch(connection, statement, given)

    try:
        while len(into) < n:
            keys = retrying(connection, untried)
            for (key,) in keys:
                if local_clock() >= ends_at:
                    return
                tried.append(key)
                try:
                    into += take(key)
                except DatabaseError as error:
                    if not may_be_a_rows_fault(connection, error):
                        raise
                    refusals[key] = in_words(error)
            if not keys:
                return
    finally:
        remember(table, refusals)


def remember(table: JobTable, refusals: Mapping[Any, str]) -> None:
    """Remember rows that could not be written, by key as a statement's parameter, each with its
    error.
    """
    for key, why in refusals.items():
        logger.error("cannot claim %s %s: %s", table.name, key, why)
    try:
        as_text = {key_as_text(table, key): why for key, why in refusals.items()}
        refused.remember(table.connection(), table, Verb.CLAIM, as_text)
    except Error as error:
        logger.error(
            "%s: rows that cannot be written are not remembered: %s", table.name, in_words(error)
        )
