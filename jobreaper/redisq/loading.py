"""From a file and the environment to a ``Config``, with every fault named at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq import rules
from jobreaper.redisq.config import Config, Environment, environment_name, is_section
from jobreaper.redisq.rules import Fault

# More than any configuration needs, and little enough to be read by mistake.
LARGEST_FILE: Final = 1024 * 1024

# The messages of pydantic that a reader meets most, in the words of this package.
_WORDS: Final = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a number, and not infinite",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
    "greater_than_equal": "must be {ge:g} or more",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be {le:g} or less",
    "literal_error": "must be {expected}",
}


def load(path: str | Path | None = None) -> Config:
    """Return the configuration in the YAML file at ``path`` and in the environment. Without a
    file, or where it does not exist, the defaults and the environment count.

    Raises:
        ConfigurationError: something is wrong; the message has a line for each fault, with the key
            in the file and its name in the environment, and never a password.
    """
    return from_document(_document(Path(path)) if path is not None else {})


def from_document(document: Mapping[str, Any]) -> Config:
    """Return the configuration in ``document``, in which sections are dicts, and in the
    environment, which comes first.

    Raises:
        ConfigurationError: as for ``load()``.
    """
    values = _over(document, Environment(Config)())
    found: list[Fault] = []
    while True:
        try:
            config = Config(**values)
            break
        except ValidationError as error:
            wrong = [_fault(each) for each in error.errors(include_url=False)]
        found += wrong
        # The rules judge the other keys.
        for fault in wrong:
            values = _without(values, fault.path)
    bad = {fault.path for fault in found}
    found += [
        fault
        for fault in rules.faults(config)
        # A rule about a key that already has a fault would judge a default in its place.
        if not any(_within(path, bad) for path in (fault.path, *fault.rests_on))
    ]
    if found:
        raise ConfigurationError("\n".join(sorted(set(map(_line, found)))))
    return config


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text: {error.reason}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{path} cannot be read: {why}") from None
    if len(text) > LARGEST_FILE:
        raise ConfigurationError(f"{path} is larger than {LARGEST_FILE:,} characters")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The message of a YAML error quotes the line, which may hold a password.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigurationError(f"{path}{where} is not YAML: {what}") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigurationError(f"{path} must be a mapping with the sections as its keys")
    return document


def _fault(error: ErrorDetails) -> Fault:
    path = tuple(_path(error["loc"]))
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return Fault(path, f"is not a key. {_nearest(path)}")
    if kind == "value_error":
        return Fault(path, str(context["error"]))
    return Fault(path, _WORDS[kind].format(**context) if kind in _WORDS else error["msg"])


def _path(loc: tuple[int | str, ...]) -> Iterator[str]:
    """Yield the keys of a location. Its end may name a part of a value, and not a key."""
    section: Any = Config
    for part in loc:
        yield str(part)
        field = section.model_fields.get(part)
        if field is None or not is_section(field.annotation):
            return
        section = field.annotation


def _nearest(path: tuple[str, ...]) -> str:
    section: Any = Config
    for part in path[:-1]:
        section = section.model_fields[part].annotation
    known = list(section.model_fields)
    nearest = get_close_matches(path[-1], known, n=1)
    return f"Did you mean {nearest[0]}?" if nearest else f"Known are {', '.join(known)}"


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``below`` with the values of ``above`` in their places. What should be a section and
    is not stays, to be reported.
    """
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        if isinstance(value, Mapping):
            if lower is None or isinstance(lower, Mapping):
                merged[key] = _over(lower or {}, value)
        else:
            merged[key] = value
    return merged


def _without(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    head, *rest = path
    left = dict(values)
    inner = left.pop(head, None)
    if rest and isinstance(inner, Mapping):
        left[head] = _without(inner, tuple(rest))
    return left


def _within(path: tuple[str, ...], bad: set[tuple[str, ...]]) -> bool:
    return any(path[: len(other)] == other for other in bad)


def _line(fault: Fault) -> str:
    return f"{'.'.join(fault.path)} ({environment_name(fault.path)}) {fault.message}"


def as_yaml(config: Config) -> str:
    """Return ``config`` as a file that ``load()`` reads, with ``**********`` for a password."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
