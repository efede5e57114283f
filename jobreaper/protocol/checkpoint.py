"""What a job's function saves under its lease for the next attempt."""

from __future__ import annotations

import json
from typing import Any, Final

from jobreaper.db import fetch, retrying
from jobreaper.exceptions import BadState
from jobreaper.protocol.ending import Elsewhere, in_its_session, refusal, reject
from jobreaper.protocol.holding import Holding
from jobreaper.protocol.outcome import as_json

# It is written as a whole each time.
LARGEST_STATE_BYTES: Final = 64 * 1024


def save(holding: Holding, state: dict[str, Any] | None) -> None:
    """Save ``state`` for the next attempt, as ``Lease.save_state()`` does."""
    text = _json(state)
    if holding.is_closed:
        raise refusal(holding, "save_state")
    connection = holding.table.connection(holding.alias)
    params = {
        "id": holding.key,
        "epoch": holding.epoch,
        "worker": holding.worker,
        "session": holding.session,
        "state": text,
    }

    def send() -> None:
        # The statement cannot tell apart a later lease under the same epoch.
        written = not holding.is_superseded and fetch(
            connection, holding.table.statement("save_state"), params
        )
        if not written:
            reject(holding, connection, "save_state", tried_before=False)

    retrying(connection, lambda _: in_its_session(holding, connection, send))
    holding.has_state = True


def read(holding: Holding) -> dict[str, Any] | None:
    """Return what was saved last, as ``Lease.state`` does."""
    connection = holding.table.connection(holding.alias)
    params = {"id": holding.key, "session": holding.session}

    def send() -> str | None:
        text: str | None
        [(is_in_session, text)] = fetch(connection, holding.table.statement("read_state"), params)
        if not is_in_session:
            raise Elsewhere
        return text

    text = retrying(connection, lambda _: in_its_session(holding, connection, send))
    if text is None:
        return None
    holding.has_state = True
    state: dict[str, Any] | None = json.loads(text)
    return state


def _json(state: dict[str, Any] | None) -> str:
    if not isinstance(state, dict | None):
        raise BadState(f"a state is a dict or None, not of type {type(state).__name__}")
    return as_json(state, "state", LARGEST_STATE_BYTES, BadState)
