"""Examines an installation: settings, functions, indexes, the reaper's schedule, the server. Each
finding says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.core import checks
from django.db import Error
from django.utils.translation import gettext as _

from jobreaper.db import in_words
from jobreaper.doctor.database import look_at
from jobreaper.doctor.findings import Finding, Level
from jobreaper.exceptions import ConfigurationError
from jobreaper.tables import by_alias

__all__ = ["Finding", "Level", "examine"]

_LEVELS: Final = ((checks.ERROR, Level.ERROR), (checks.WARNING, Level.WARNING))


def examine() -> list[Finding]:
    """Return the findings: those of the system checks, and those of each database with job
    tables.
    """
    found = list(_checked())
    if not any(finding.level is Level.ERROR for finding in found):
        found.append(Finding("checks", Level.OK, _("The system checks found no error.")))
    for alias, tables in sorted(by_alias().items()):
        found += look_at(alias, tables)
    return found


def _checked() -> Iterator[Finding]:
    """Yield what jobreaper's system checks say: the settings against each other, the functions in
    the database, poolers, replication.
    """
    aliases = sorted(by_alias())
    for tags in (["jobreaper"], [checks.Tags.database]):
        try:
            messages = checks.run_checks(tags=tags, databases=aliases)
        # Settings that are wrong, which the first of the two says, or a database that is away.
        except (Error, ConfigurationError) as error:
            yield Finding("checks", Level.ERROR, in_words(error))
            continue
        for message in messages:
            if not str(message.id).startswith("jobreaper.") or message.is_silenced():
                continue
            level = next((own for least, own in _LEVELS if message.level >= least), Level.OK)
            yield Finding(str(message.id), level, str(message.msg), str(message.hint or ""))
