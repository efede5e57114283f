"""The registry of job tables: which there are, and how a program names one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import combinations, product
from types import MappingProxyType
from typing import Any, TypeVar

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import models

from jobreaper import conf, values
from jobreaper.base import PROTOCOL_COLUMNS, LeasedJob
from jobreaper.exceptions import ConfigurationError, UnknownTable
from jobreaper.jobtable import EXTRA_PARTS, FUNCTIONS, VIEWS, JobTable
from jobreaper.states import AttemptsCounted, OnExpiry, Status

__all__ = ["JobTable", "job_tables", "named", "register", "table_of"]

T = TypeVar("T")
# A number may stand in a column too, and either may be a member of an enum.
Word = str | int

_tables: dict[type[models.Model], JobTable] = {}


def register(
    model: type[models.Model],
    *,
    columns: Mapping[str, str] | None = None,
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
    """Adopt a model's table as a job table, and return it. Call it in an ``AppConfig.ready()``.

    Every concrete ``LeasedJob`` is registered by itself, and needs this only for a ``ttl``.

    Args:
        model: any model, managed or not.
        columns: the field or column that plays a part of the protocol, by the part's name, which is
            the name of ``LeasedJob``'s field; a part of the same name needs no entry.
        words: the table's words for ``queued``, ``processing``, ``success``, ``failed`` and
            ``cancelled``, where they differ; several words for one status are all read, and the
            first is written.
        ttl: how long a running job without a lease may show no sign of life, in seconds or text
            such as ``"15m"``; by stage in a dict, where a stage without an entry has no limit.
        max_attempts: for tables without such a column, and for rows where it is NULL.
        attempts_counted: ``"claim"`` where workers count an attempt when they start it, ``"reap"``
            where the reaper does when it gives the job back. For tables without leases.
        on_expiry: ``"fail"`` where such a job is never to be run again.
        note: what the text put into ``fail_reason`` begins with.
        retention: whether finished jobs are deleted when they are older than ``RETENTION`` says; an
            index on (status, finished_at) makes that cheap.
        functions: names for the SQL functions, by verb, in place of ``<table>_<verb>``.
        reclaim_only: the table is meant to have no leases, so that the check W011 names only what
            reclaiming misses.

    Raises:
        ConfigurationError: a part, a word or a column is not known, or a value is bad.
    """
    if model._meta.abstract:
        raise ConfigurationError(f"cannot adopt {model._meta.label}: it is abstract")
    model = model._meta.concrete_model or model
    problems = []
    columns, words, functions = columns or {}, words or {}, functions or {}
    for option, given, known, what in (
        ("columns", columns, (*PROTOCOL_COLUMNS, *EXTRA_PARTS), "part of the protocol"),
        ("words", words, list(Status), "status"),
        ("functions", functions, (*FUNCTIONS, *VIEWS), "function or view"),
    ):
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"cannot adopt {model._meta.label}: {option} is {given!r}: it must be a dict"
            )
        problems += [
            f"{name!r} is no {what} (there are {', '.join(known)})"
            for name in given
            if name not in known
        ]
    by_stage = isinstance(ttl, Mapping)
    try:
        table = JobTable(
            model=model,
            given_columns=MappingProxyType(dict(columns)),
            words=MappingProxyType(
                {
                    status: _parsed(
                        f"words for {status.value!r}",
                        _as_words,
                        words.get(status.value, status.value),
                    )
                    for status in Status
                }
            ),
            ttl_sec=_parsed(
                "ttl", values.optional(values.positive_duration), None if by_stage else ttl
            ),
            ttl_sec_by_stage=MappingProxyType(
                {
                    _parsed("a stage in ttl", _as_word, stage): _parsed(
                        f"ttl of {stage!r}", values.positive_duration, sec
                    )
                    for stage, sec in (ttl.items() if isinstance(ttl, Mapping) else ())
                }
            ),
            max_attempts=_parsed("max_attempts", values.count, max_attempts),
            attempts_counted=_parsed("attempts_counted", AttemptsCounted, attempts_counted),
            on_expiry=_parsed("on_expiry", values.on_expiry, on_expiry),
            note=_parsed("note", values.name, note) if note else note,
            retention=retention,
            function_names=MappingProxyType(
                {
                    verb: _parsed(f"functions for {verb!r}", values.name, name)
                    for verb, name in functions.items()
                }
            ),
            reclaim_only=reclaim_only,
        )
        if "status" not in table.columns:
            problems.append("it has no status column: name it in columns={'status': …}")
        if retention and not table.can_be_leased:
            problems.append("retention needs the columns of a lease")
        if by_stage and "stage" not in table.columns:
            problems.append("ttl is given by stage, and there is no stage column")
        if by_stage and table.can_be_leased:
            problems.append("it has leases: give a stage's ttl in the setting JOBREAPER['STAGES']")
        for parent, columns_there in table.columns_elsewhere.items():
            problems.append(
                f"{', '.join(columns_there)} are columns of its parent's table "
                f"{parent._meta.db_table!r}: adopt {parent._meta.label}"
            )
        for column in sorted(set(table.columns.values())):
            parts = [part for part, own in table.columns.items() if own == column]
            if len(parts) > 1:
                problems.append(f"column {column!r} plays several parts: {', '.join(parts)}")
        problems += [
            f"the word {word!r} means both {one} and {other}"
            for one, other in combinations(Status, 2)
            if not {one, other} <= _may_share(table)
            for word in sorted({*table.words[one]} & {*table.words[other]})
        ]
        for kind in (FUNCTIONS, VIEWS):
            problems += [
                f"functions has the name {name!r} more than once"
                for name, times in Counter(map(table.installed_name, kind)).items()
                if times > 1
            ]
            # The second would replace the first.
            problems += [
                f"functions has the name {table.installed_name(verb)!r}, which is that of "
                f"{other.name}'s {theirs}"
                for other in _tables.values()
                if other.model is not model and other.name_parts[:-1] == table.name_parts[:-1]
                for verb, theirs in product(kind, repeat=2)
                if table.installed_name(verb) == other.installed_name(theirs)
            ]
    except (ValueError, FieldDoesNotExist) as error:
        problems.append(str(error))
    if problems:
        raise ConfigurationError(f"cannot adopt {model._meta.label}: {'; '.join(problems)}")
    _tables[model] = table
    return table


def _parsed(option: str, parse: Callable[[Any], T], value: object) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{option} is {value!r}: {error}") from error


def _may_share(table: JobTable) -> set[Status]:
    """Return the statuses that may have a word in common: ends that no verb tells apart. A failed
    or cancelled job may be requeued by an operator, one that has succeeded may not.
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


def job_tables() -> list[JobTable]:
    """Return every job table, in the order of ``INSTALLED_APPS``."""
    return [
        table_of(model)
        for model in apps.get_models()
        if model in _tables or (issubclass(model, LeasedJob) and _owner(model) is model)
    ]


def _owner(model: type[LeasedJob]) -> type[models.Model]:
    """Return the model whose table holds the jobs of ``model``: of a proxy the one behind it, of a
    child with a table of its own the parent.
    """
    return model._meta.get_field("status").model


def table_of(model: type[models.Model]) -> JobTable:
    """Return the job table of ``model``.

    Raises:
        UnknownTable: it is neither a ``LeasedJob`` nor registered.
    """
    concrete = model._meta.concrete_model or model
    if concrete not in _tables and issubclass(concrete, LeasedJob):
        concrete = _owner(concrete)
    if concrete in _tables:
        return _tables[concrete]
    if not issubclass(concrete, LeasedJob):
        raise UnknownTable(model._meta.label, (table.name for table in job_tables()))
    return register(concrete)


def named(names: Iterable[str | type[models.Model]] | None) -> list[JobTable]:
    """Return the job tables with these names or models, all of them for ``None``.

    Raises:
        UnknownTable: there is no such job table.
    """
    if names is None:
        return job_tables()
    known = {table.name: table for table in job_tables()}
    chosen: dict[str, JobTable] = {}
    for name in names:
        table = known.get(name) if isinstance(name, str) else table_of(name)
        if table is None:
            raise UnknownTable(str(name), known)
        chosen[table.name] = table
    return list(chosen.values())
