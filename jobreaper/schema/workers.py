"""The functions with which workers in other languages hold presence: they run the statements that
Python's workers send.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from psycopg.sql import SQL, Composable, Identifier

from jobreaper import sql
from jobreaper.schema.objects import Installed
from jobreaper.schema.place import Place
from jobreaper.states import WorkerKind

# The values of a statement inside its function, instead of Python's parameters. A worker's id says
# where it runs, `<host>:<pid>:<token>`; otherwise, its session does.
_GIVEN: Final = {
    "worker": "{function}.worker",
    "backend_pid": "coalesce({function}.backend_pid, pg_backend_pid())",
    "kind": f"'{WorkerKind.FOREIGN}'",
    "host": "coalesce(substring({function}.worker from '^(.+):[0-9]+:[^:]*$'),"
    " host(inet_client_addr()), '')",
    "pid": "coalesce(substring({function}.worker from ':([0-9]{{1,9}}):[^:]*$')::int, 0)",
    "version": "''",
    "runs": "{function}.runs",
    "leases": "{function}.leases",
    "is_direct": "is_held IS NOT NULL",
}


def functions_of_workers(place: Place) -> Iterator[Installed]:
    """Yield the functions, which are to be created in the first schema of ``place``."""
    for verb, statements, arguments in (
        ("worker_here", ("lock", "note"), "(text, int, int, text)"),
        ("worker_left", ("left",), "(text)"),
    ):
        name = f"jobreaper_{verb}"
        worker = {"worker": SQL(f"{name}.worker")}
        parts: dict[str, Composable] = {
            "name": Identifier(place.first, name),
            "search_path": place.search_path,
            **place.own_tables,
            "presence_locks": sql.compose("fragments/presence_locks", {}),
            "key_of_worker": sql.compose("fragments/presence_key", worker),
        }
        given = {key: text.format(function=name) for key, text in _GIVEN.items()}
        for statement in statements:
            text = sql.render(f"statements/presence_{statement}", parts)
            parts[statement] = SQL(text % given)
        source = sql.plain(f"functions/{verb}", parts)
        yield Installed("FUNCTION", Identifier(place.first, name), source, arguments)
