"""`PRESENCE_DATABASE` has to lead to the jobs, by another way."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings

from jobreaper.presence import checks

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def aliases() -> Iterator[None]:
    """Databases beside the default one: the same, others, and one that does not answer."""
    own = connection.settings_dict
    made: dict[str, dict[str, Any]] = {
        "direct": {},
        "elsewhere": {"NAME": "postgres"},
        "silent": {"HOST": "127.0.0.1", "PORT": "1"},
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }
    for alias, changed in made.items():
        connections.databases[alias] = {**own, **changed}
    yield
    for alias in made:
        connections[alias].close()
        del connections[alias]
        del connections.databases[alias]


def found(route: Any, **settings: Any) -> list[str]:
    """What the checks say of it."""
    with override_settings(JOBREAPER={"PRESENCE_DATABASE": route, **settings}):
        messages = [*checks.check_routes(None), *checks.check_sessions(None, ["default"])]
    for message in messages:
        assert message.id == "jobreaper.E009"
        assert "docs/checks.md#e009" in str(message.hint)
    return [message.msg for message in messages]


@pytest.mark.parametrize("route", [None, "direct", {"default": "direct"}, {}])
def test_it_may_be_left_out_or_lead_to_the_same_database(aliases: None, route: Any) -> None:
    assert found(route) == []


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("nowhere", "'nowhere', which is not in DATABASES"),
        ({"default": "nowhere"}, "'nowhere', which is not in DATABASES"),
        ({"defalt": "direct"}, "'defalt', which is not in DATABASES"),
        ("sqlite", "'sqlite', which is sqlite"),
        ("elsewhere", "'elsewhere', which is another database than 'default'"),
        ("silent", "'silent', which does not answer: "),
    ],
)
def test_what_does_not_lead_to_the_jobs_is_named(aliases: None, route: Any, said: str) -> None:
    [message] = found(route)
    assert said in message


def test_one_alias_does_not_stand_for_several_databases(
    aliases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "by_alias", lambda: {"default": [], "elsewhere": []})
    [message] = found("direct")
    assert "job tables are in several: default, elsewhere" in message
    assert found({"default": "direct"}) == []


def test_without_presence_nobody_is_asked(aliases: None) -> None:
    assert found("silent", PRESENCE_GRACE_SEC=0) == []
