"""Adoption: checks the arguments of ``register()`` and turns them into a job table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import combinations, product
from types import MappingProxyType
from typing import Any, Final, TypeVar

from django.core.exceptions import FieldDoesNotExist
from django.db import models

from jobreaper import conf, values
from jobreaper.base import PROTOCOL_COLUMNS
from jobreaper.exceptions import ConfigurationError
from jobreaper.states import AttemptsCounted, OnExpiry, Status
from jobreaper.tables.jobtable import JobTable
from jobreaper.tables.shape import EXTRA_PARTS, FUNCTIONS, VIEWS

T = TypeVar("T")
# A column may also contain numbers, and both may be members of an enum.
Word = str | int

# How options are read that are about one thing.
_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    "max_attempts": values.count,
    "attempts_counted": AttemptsCounted,
    "on_expiry": values.on_expiry,
    "note": lambda note: values.name(note) if note else note,
    "retention": bool,
    "reclaim_only": bool,
}

# All tables that were adopted so far.
_tables: dict[type[models.Model], JobTable] = {}


def register(
    model: type[models.Model],
    *,
    columns: Mapping[str, str | None] | None = None,
    words: Mapping[str, Word | Iterable[Word]] | None = None,
    ttl: float | str | Mapping[Word, float | str] | None = None,
    max_attempts: int = conf.DEFAULT_MAX_ATTEMPTS,
    attempts_counted: str = AttemptsCounted.CLAIM,
    on_expiry: str = OnExpiry.REQUEUE,
    note: str = "RECLAIMED_TTL",
    retention: bool = False,
    functions: Mapping[str, str] | None = None,
    reclaim_only: bool = False,
) -> JobTable:
    """Adopt a model's table as a job table, and return it. Call this in ``AppConfig.ready()``.

    Every concrete ``LeasedJob`` is registered automatically, and needs this only for a ``ttl``.

    Args:
        model: any model, managed or not.
        columns: the field or column that plays a part of the protocol, by the part's name, which is
            the name of ``LeasedJob``'s field; a part of the same name needs no entry,
            and ``None`` says that a field of this name means something else.
        words: the table's words for ``queued``, ``processing``, ``success``, ``failed`` and
            ``cancelled``, where they differ; several words for one status are all read, and the
            first is written.
        ttl: how long a running job without a lease may show no sign of life, in seconds or text
            such as ``"15m"``; by stage in a dict, where a stage without an entry has no limit.
        max_attempts: for tables without such a column, and for rows where it is NULL.
        attempts_counted: ``"claim"`` where workers count an attempt when they start it, ``"reap"``
            where the reaper does when it gives the job back: the column then leaves out the attempt
            that runs. For tables without leases.
        on_expiry: ``"fail"`` if such a job must never run again.
        note: the beginning of the text in ``fail_reason``.
        retention: whether finished jobs are deleted when they are older than ``RETENTION`` says; an
            index on (status, finished_at) makes that cheap.
        functions: names for the SQL functions, by verb, instead of ``<table>_<verb>``.
        reclaim_only: the table is meant to have no leases, so that the check W011 names only what
            reclaiming misses.

    Raises:
        ConfigurationError: a part, a word or a column is unknown, or a value is invalid.
    """
    return _adopt(
        model,
        {"columns": columns or {}, "words": words or {}, "functions": functions or {}},
        ttl,
        max_attempts=max_attempts,
        attempts_counted=attempts_counted,
        on_expiry=on_expiry,
        note=note,
        retention=retention,
        reclaim_only=reclaim_only,
    )


def _adopt(
    model: type[models.Model], dicts: Mapping[str, Mapping[str, Any]], ttl: Any, **options: Any
) -> JobTable:
    refusal = f"cannot adopt {model._meta.label}"
    if model._meta.abstract:
        raise ConfigurationError(f"{refusal}: it is abstract")
    for option, given in dicts.items():
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"{refusal}: {option} is {given!r}: it must be a dict")
    model = model._meta.concrete_model or model
    problems = list(_unknown_names(dicts))
    try:
        table = JobTable(
            model=model,
            given_columns=MappingProxyType(dict(dicts["columns"])),
            words=_words(dicts["words"]),
            ttl_sec=_ttl_sec(ttl),
            ttl_sec_by_stage=_ttl_sec_by_stage(ttl),
            function_names=_function_names(dicts["functions"]),
            **{name: _parsed(name, _PARSERS[name], value) for name, value in options.items()},
        )
        problems += [*_misfits(table), *_words_used_twice(table), *_names_used_twice(table)]
    except (ValueError, FieldDoesNotExist) as error:
        problems.append(str(error))
    if problems:
        raise ConfigurationError(f"{refusal}: {'; '.join(problems)}")
    _tables[model] = table
    return table


def _unknown_names(dicts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for option, known, what in (
        ("columns", (*PROTOCOL_COLUMNS, *EXTRA_PARTS), "part of the protocol"),
        ("words", list(Status), "status"),
        ("functions", (*FUNCTIONS, *VIEWS), "function or view"),
    ):
        for name in dicts[option]:
            if name not in known:
                yield f"{name!r} is no {what} (there are {', '.join(known)})"


def _words(given: Mapping[str, Any]) -> Mapping[Status, tuple[str, ...]]:
    return MappingProxyType(
        {
            status: _parsed(
                f"words for {status.value!r}", _as_words, given.get(status.value, status.value)
            )
            for status in Status
        }
    )


def _ttl_sec(ttl: object) -> float | None:
    given = None if isinstance(ttl, Mapping) else ttl
    return _parsed("ttl", values.optional(values.positive_duration), given)


def _ttl_sec_by_stage(ttl: object) -> Mapping[str, float]:
    given = ttl.items() if isinstance(ttl, Mapping) else ()
    return MappingProxyType(
        {
            _parsed("a stage in ttl", _as_word, stage): _parsed(
                f"ttl of {stage!r}", values.positive_duration, sec
            )
            for stage, sec in given
        }
    )


def _function_names(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(
        {
            verb: _parsed(f"functions for {verb!r}", values.name, name)
            for verb, name in given.items()
        }
    )


def _misfits(table: JobTable) -> Iterator[str]:
    """Yield contradictions between the table's columns and its options."""
    if "status" not in table.columns:
        yield "it has no status column: name it in columns={'status': …}"
    if table.retention and not table.can_be_leased:
        yield "retention needs the columns of a lease"
    if table.ttl_sec_by_stage and "stage" not in table.columns:
        yield "ttl is given by stage, and there is no stage column"
    if table.ttl_sec_by_stage and table.can_be_leased:
        yield "it has leases: give a stage's ttl in the setting JOBREAPER['STAGES']"
    for parent, columns_there in table.columns_elsewhere.items():
        yield (
            f"{', '.join(columns_there)} are columns of its parent's table "
            f"{parent._meta.db_table!r}: adopt {parent._meta.label}"
        )
    for column in sorted(set(table.columns.values())):
        parts = [part for part, own in table.columns.items() if own == column]
        if len(parts) > 1:
            yield f"column {column!r} plays several parts: {', '.join(parts)}"


def _words_used_twice(table: JobTable) -> Iterator[str]:
    for one, other in combinations(Status, 2):
        if not {one, other} <= _may_share(table):
            for word in sorted({*table.words[one]} & {*table.words[other]}):
                yield f"the word {word!r} means both {one} and {other}"


def _names_used_twice(table: JobTable) -> Iterator[str]:
    """Yield the names of functions or views that occur twice, so that the second would replace the
    first.
    """
    for kind in (FUNCTIONS, VIEWS):
        for name, times in Counter(map(table.installed_name, kind)).items():
            if times > 1:
                yield f"functions has the name {name!r} more than once"
        for other in _tables.values():
            if other.model is table.model or other.name_parts[:-1] != table.name_parts[:-1]:
                continue
            for verb, theirs in product(kind, repeat=2):
                if table.installed_name(verb) == other.installed_name(theirs):
                    yield (
                        f"functions has the name {table.installed_name(verb)!r}, which is that of "
                        f"{other.name}'s {theirs}"
                    )


def _parsed(option: str, parse: Callable[[Any], T], value: object) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{option} is {value!r}: {error}") from error


def _may_share(table: JobTable) -> set[Status]:
    """Return the statuses that may share a word: ends that no verb distinguishes. An operator may
    requeue a failed or cancelled job, but not one that succeeded.
    """
    return {Status.FAILED, Status.CANCELLED} | (set() if table.can_be_leased else {Status.SUCCESS})


def _as_words(words: object) -> tuple[str, ...]:
    if isinstance(words, str | int) or not isinstance(words, Iterable):
        return (_as_word(words),)
    if several := tuple(_as_word(word) for word in words):
        return several
    raise ValueError("there must be one at least")


def _as_word(word: object) -> str:
    value = word.value if isinstance(word, Enum) else word
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("it must be text or a whole number")
    text = str(value)
    return values.name(text) if text else text
