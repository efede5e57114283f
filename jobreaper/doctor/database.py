"""What the doctor asks each database that has job tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from psycopg.sql import Identifier

from jobreaper import conf, sql
from jobreaper.base import lease_indexes
from jobreaper.db import connection_for, in_words
from jobreaper.doctor.findings import Finding, Level
from jobreaper.exceptions import ConfigurationError
from jobreaper.explaining import words
from jobreaper.explaining.facts import ask
from jobreaper.models import JobEvent, RefusedRow, Worker
from jobreaper.overview import reaper_now
from jobreaper.presence import standing
from jobreaper.states import WorkerState
from jobreaper.tables import JobTable

# The oldest server on which every statement runs.
LEAST_SERVER: Final = 140000
# Clocks that differ by less do not matter; by more than a heartbeat, people misjudge leases.
CLOCKS_SEC: Final = 2.0
OLD_TRANSACTION_SEC: Final = 600.0
MANY_DEAD_ROWS: Final = 10_000
DEAD_SHARE: Final = 0.3
# An index of a smaller table may well never be used.
ROWS_OF_A_LARGE_TABLE: Final = 10_000

Look = Callable[[BaseDatabaseWrapper, list[JobTable]], Iterator[Finding]]


def look_at(alias: str, tables: list[JobTable]) -> Iterator[Finding]:
    """Yield what there is to say about a database. What cannot be asked is a finding too."""
    connection = connection_for(alias)
    for about, look in _LOOKS.items():
        try:
            for found in look(connection, tables):
                yield Finding(about, found.level, found.text, found.remedy, alias)
        except (Error, ConfigurationError) as error:
            said = _("It could not be asked: %(error)s") % {"error": in_words(error)}
            yield Finding(about, Level.ERROR, said, database=alias)


_error = partial(Finding, "", Level.ERROR)
_warning = partial(Finding, "", Level.WARNING)
_ok = partial(Finding, "", Level.OK)


def _migrations(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    leaves = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "jobreaper"]
    plan = executor.migration_plan(leaves)
    if plan:
        names = ", ".join(migration.name for migration, _backwards in plan)
        said = _("Migrations are missing: %(names)s.") % {"names": names}
        yield _error(said, _("Run manage.py migrate."))
    else:
        yield _ok(_("All migrations of jobreaper are there."))


def _passes(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    reaper = reaper_now(connection)
    if reaper.is_away or reaper.error:
        remedy = _("Run the reaper: manage.py reap --loop, manage.py work, or Celery beat.")
        yield _error(reaper.in_words, remedy)
    elif reaper.held_reason:
        yield _warning(reaper.in_words, _("It passes by itself; if it stays, see why it is held."))
    else:
        yield _ok(reaper.in_words)


def _schedule(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    found = dict(ask(connection, sql.render("statements/passes_by_trigger"), {}))
    regular = sorted(set(found) - {"admin", "python"})
    if regular:
        said = _("Passes of the last day came from: %(names)s.")
        yield _ok(said % {"names": ", ".join(regular)})
        return
    yield _error(
        _("Nothing ran a pass by itself in the last day."),
        _("Install a schedule: manage.py work or reap --loop as a service, or beat_schedule()."),
    )


def _server(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    connection.ensure_connection()
    params = {"backend_pid": connection.connection.info.backend_pid}
    asked = time.time()
    [row] = ask(connection, sql.render("statements/server"), params)
    answered = time.time()
    now, number, said, has_autovacuum, is_direct = row
    if number < LEAST_SERVER:
        yield _error(
            _("PostgreSQL %(version)s is too old.") % {"version": said},
            _("Upgrade to PostgreSQL 14 or newer."),
        )
    else:
        yield _ok(_("PostgreSQL %(version)s.") % {"version": said})
    if not has_autovacuum:
        yield _error(
            _("autovacuum is switched off."),
            _("Set autovacuum and track_counts to on: the indexes of busy job tables grow."),
        )
    yield from _clocks(now.timestamp() - (asked + answered) / 2, answered - asked)
    if is_direct:
        yield _ok(_("The connection is direct, without a pooler in between."))
    else:
        yield _ok(
            _("The connection goes through a pooler. Workers need PRESENCE_DATABASE to be watched.")
        )


def _clocks(ahead_sec: float, trip_sec: float) -> Iterator[Finding]:
    difference = abs(ahead_sec)
    if difference <= CLOCKS_SEC + trip_sec:
        yield _ok(_("The clocks of this machine and of PostgreSQL agree."))
        return
    said = _("PostgreSQL's clock and this machine's differ by %(span)s.")
    look = _error if difference > conf.settings().heartbeat_sec else _warning
    remedy = _("Synchronize both with NTP. Leases follow PostgreSQL's clock alone.")
    yield look(said % {"span": words.duration(difference)}, remedy)


def _indexes(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    missing = 0
    for table in tables:
        if not table.can_be_leased:
            continue
        wanted = lease_indexes(
            table.model._meta.db_table, table.key_columns, has_priority="priority" in table.extras
        )
        for index in wanted:
            name = Identifier(*table.name_parts[:-1], index.name).as_string(None)
            rows = ask(connection, sql.render("statements/index_use"), {"index": name})
            for found in _index(table, index.name, rows):
                missing += 1
                yield found
    if not missing:
        yield _ok(_("The indexes of the job tables are there and valid."))


def _index(table: JobTable, name: str, rows: list[Any]) -> Iterator[Finding]:
    named = {"name": name, "table": table.name}
    if not rows:
        yield _warning(
            _("%(table)s has no index %(name)s.") % named,
            _("Create it with makemigrations, or with AddLeaseColumns for an adopted table."),
        )
        return
    [(scans, table_rows, is_valid)] = rows
    if not is_valid:
        yield _error(
            _("The index %(name)s is not valid.") % named, _("REINDEX INDEX CONCURRENTLY it.")
        )
    elif scans == 0 and table_rows > ROWS_OF_A_LARGE_TABLE:
        yield _warning(
            _("The index %(name)s of the large table %(table)s has never been used.") % named,
            _("Run ANALYZE, and see whether the reaper and the workers use this table."),
        )


def _vacuum(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    names = [Identifier(*table.name_parts).as_string(None) for table in tables]
    names.append(JobEvent._meta.db_table)
    behind = 0
    rows = ask(connection, sql.render("statements/vacuum"), {"tables": names})
    for name, live, dead, since_sec, is_off in rows:
        named = {"table": name, "dead": f"{dead:,}", "live": f"{live:,}"}
        if is_off:
            behind += 1
            said = _("autovacuum is switched off for %(table)s.") % named
            yield _warning(said, _("ALTER TABLE … RESET (autovacuum_enabled)."))
        elif dead > MANY_DEAD_ROWS and dead > DEAD_SHARE * (live + dead):
            behind += 1
            ago = words.duration(since_sec) if since_sec is not None else _("ever")
            said = _(
                "%(table)s has %(dead)s dead rows beside %(live)s; last vacuumed: %(ago)s ago."
            )
            remedy = _("VACUUM it, and lower its autovacuum_vacuum_scale_factor.")
            yield _warning(said % {**named, "ago": ago}, remedy)
    if not behind:
        yield _ok(_("autovacuum keeps up with the job tables."))


def _transactions(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    params = {"old_sec": OLD_TRANSACTION_SEC}
    rows = ask(connection, sql.render("statements/holds_vacuum_back"), params)
    for kind, name, owner, state, query, age_sec in rows:
        named = {
            "name": name,
            "owner": owner.strip(),
            "age": words.duration(age_sec or 0),
            "state": state,
            "query": words.statement(query),
        }
        if kind == "slot":
            said = _("The replication slot %(name)s is not used and holds vacuum back.")
            yield _warning(said % named, _("Drop it, or bring its subscriber back."))
        elif kind == "prepared":
            said = _("The prepared transaction %(name)s is %(age)s old and holds vacuum back.")
            yield _warning(said % named, _("COMMIT PREPARED or ROLLBACK PREPARED."))
        else:
            said = _(
                "Backend %(name)s (%(owner)s) has been in a transaction for %(age)s: %(query)s"
            )
            remedy = _("End it: SELECT pg_terminate_backend(%(name)s).") % named
            yield _warning(said % named, remedy)
    if not rows:
        yield _ok(_("No old transaction holds vacuum back."))


def _workers(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    rows = standing.with_state(Worker.objects.using(connection.alias).all())
    here = [row for row in rows[:1000] if row.state == WorkerState.HERE]
    others = sorted({row.version for row in here} - {version("jobreaper")})
    if others:
        said = _("Workers of other versions are here: %(versions)s; this is %(own)s.")
        yield _warning(
            said % {"versions": ", ".join(others), "own": version("jobreaper")},
            _("Fine during a deploy; otherwise restart them."),
        )
    said = ngettext("%(n)d worker is here.", "%(n)d workers are here.", len(here))
    yield _ok(said % {"n": len(here)})


def _refused(connection: BaseDatabaseWrapper, tables: list[JobTable]) -> Iterator[Finding]:
    found = RefusedRow.objects.using(connection.alias).count()
    if found:
        said = ngettext(
            "%(n)d row of job tables cannot be written.",
            "%(n)d rows of job tables cannot be written.",
            found,
        )
        yield _warning(said % {"n": found}, _("See the admin, or manage.py explain for each."))
    else:
        yield _ok(_("All rows can be written."))


_LOOKS: Final[dict[str, Look]] = {
    "migrations": _migrations,
    "passes": _passes,
    "schedule": _schedule,
    "server": _server,
    "indexes": _indexes,
    "vacuum": _vacuum,
    "transactions": _transactions,
    "workers": _workers,
    "rows": _refused,
}
