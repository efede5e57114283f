"""The page of the Redis queue: what is in Redis now, and dead letters in an operator's hands."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from jobreaper import conf
from jobreaper.redisq.dead_letters import DeadLetter
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.overview import digest_of
from tests.admin.pages import messages, text
from tests.redisq.places import Places, job, push

pytestmark = pytest.mark.django_db

Configure = Callable[..., None]
SignIn = Callable[..., Client]


@pytest.fixture
def configure(
    make_document: Callable[..., dict[str, Any]], tmp_path: Path, settings: Any
) -> Iterator[Configure]:
    """Name a configuration in the settings."""

    def configure(**sections: Any) -> None:
        path = tmp_path / "redisq.yaml"
        path.write_text(yaml.safe_dump(make_document(**sections)))
        settings.JOBREAPER = {"REDIS_QUEUE": str(path)}

    yield configure
    conf.reset()


@pytest.fixture
def sign_in() -> SignIn:
    """Sign in a member of staff with some of the permissions of the page."""

    def sign_in(*permissions: str) -> Client:
        user = User.objects.create_user("ada", is_staff=True)
        for permission in permissions:
            user.user_permissions.add(
                Permission.objects.get(
                    content_type__app_label="jobreaper", codename=f"{permission}_redisqueue"
                )
            )
        browser = Client()
        browser.force_login(user)
        return browser

    return sign_in


@pytest.fixture
def operator(sign_in: SignIn, configure: Configure) -> Client:
    """Someone who may do everything."""
    configure()
    return sign_in("view", "change", "delete")


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


def address(page: str = "changelist") -> str:
    return reverse(f"admin:jobreaper_redisqueue_{page}")


def shown(browser: Client, query: str = "") -> str:
    response = browser.get(address() + query)
    assert response.status_code == 200
    return text(response.content.decode())


def bury(client: redis.Redis, keys: Keys, dead: Job | bytes, **about: str) -> str:
    """Put a dead letter into the list; return what it is chosen by."""
    entry = dead if isinstance(dead, bytes) else dead.encode()
    element = DeadLetter(entry=entry, **({"reason": "failed"} | about)).encode()
    client.lpush(keys.dead_letter, element)
    return digest_of(element)


def act(browser: Client, page: str, *digests: str, **more: str) -> Any:
    return browser.post(address(page), {"letter": digests, **more}, follow=True)


def test_without_the_setting_there_is_no_page(sign_in: SignIn, settings: Any) -> None:
    settings.JOBREAPER = {}
    browser = sign_in("view", "change", "delete")
    assert browser.get(address()).status_code == 403
    assert "Redis queue" not in browser.get(reverse("admin:index")).content.decode()


def test_queues_workers_and_dead_letters_are_shown(
    operator: Client, client: redis.Redis, keys: Keys
) -> None:
    push(client, keys.queues["high"], job(1), job(2), job(3))
    client.zadd(keys.delayed(keys.queues["low"]), {"x": 1})
    client.lpush(keys.processing("busy"), job(4).encode())
    client.set(keys.heartbeat("busy"), "", px=600_000)
    client.set(keys.heartbeat("idle"), "", px=600_000)
    client.lpush(keys.processing("dead"), job(5).encode(), b"no job")
    bury(client, keys, job(6), detail="ValueError: <b>wrong</b>", worker_id="busy")
    bury(client, keys, b"\xff<script>", reason="malformed")
    page = shown(operator)
    assert f"{keys.queues['high']} high 3 0" in page
    assert f"{keys.queues['low']} low 0 1" in page
    assert re.search(r"busy alive lasts \d+ s 1 /data/4\.pdf", page)
    assert re.search(r"idle alive lasts \d+ s 0 -", page)
    assert "dead none the reaper takes its jobs back 2 /data/5.pdf" in page
    assert "/data/6.pdf" in page
    assert "ValueError: <b>wrong</b>" in page
    assert "not a job Entry \\xff<script>" in page
    assert "<script>" not in operator.get(address()).content.decode().partition("jr-raw")[2][:40]
    assert "Redis queue" in operator.get(reverse("admin:index")).content.decode()


def test_a_dead_letter_goes_back_to_its_queue_with_all_retries(
    operator: Client, client: redis.Redis, keys: Keys, places: Places
) -> None:
    chosen = bury(client, keys, job(1, retries=3, origin_queue=keys.queues["high"]))
    other = bury(client, keys, job(2, extra={"tenant": 7}))
    left = bury(client, keys, job(3))
    assert "2 were queued again" in messages(act(operator, "requeue", chosen, other))
    (again,) = places.queue("high")
    assert (parse(again).id, parse(again).retries) == ("job-1", 0)
    (low,) = places.queue("low")
    assert (parse(low).id, parse(low).extra) == ("job-2", {"tenant": 7})
    assert [digest_of(each) for each in places.entries(keys.dead_letter)] == [left]


def test_one_of_two_equal_letters_is_requeued(
    operator: Client, client: redis.Redis, keys: Keys, places: Places
) -> None:
    element = DeadLetter(entry=job(1).encode(), at="2026-01-01T00:00:00Z").encode()
    client.lpush(keys.dead_letter, element, element)
    act(operator, "requeue", digest_of(element))
    assert len(places.queue("low")) == len(places.dead()) == 1


def test_what_is_no_job_can_only_be_discarded(
    operator: Client, client: redis.Redis, keys: Keys, places: Places
) -> None:
    chosen = bury(client, keys, b"not json", reason="malformed")
    assert "is not a job" in messages(act(operator, "requeue", chosen))
    assert len(places.dead()) == 1
    asked = act(operator, "discard", chosen)
    assert "deleted for good" in text(asked.content.decode())
    assert len(places.dead()) == 1
    assert "1 was discarded" in messages(act(operator, "discard", chosen, confirmed="yes"))
    assert places.dead() == []


def test_a_letter_that_is_gone_meanwhile_is_said(
    operator: Client, client: redis.Redis, keys: Keys
) -> None:
    chosen = bury(client, keys, job(1))
    client.delete(keys.dead_letter)
    assert "1 was no longer there" in messages(act(operator, "requeue", chosen))
    assert "Choose at least one" in messages(act(operator, "requeue"))


def test_a_letter_far_down_a_long_list_is_found(
    operator: Client, client: redis.Redis, keys: Keys, places: Places
) -> None:
    chosen = bury(client, keys, job(0))
    for number in range(1, 1001):
        bury(client, keys, job(number))
    page = shown(operator, "?start=1000")
    assert "/data/0.pdf" in page
    assert "/data/1.pdf" not in page
    assert "1 was queued again" in messages(act(operator, "requeue", chosen))
    assert len(places.dead()) == 1000


@pytest.mark.parametrize("start", ["-1", "x", "9" * 40, "٣", "", "5000"])
def test_an_address_that_somebody_made_up_shows_the_page(
    operator: Client, client: redis.Redis, keys: Keys, start: str
) -> None:
    bury(client, keys, job(1))
    assert "Dead letters" in shown(operator, f"?start={start}")


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        ((), set()),
        (("view",), {"changelist"}),
        (("change", "delete"), {"changelist", "requeue", "discard"}),
        (("view", "change"), {"changelist", "requeue"}),
        (("view", "delete"), {"changelist", "discard"}),
    ],
)
def test_each_verb_needs_its_permission(
    sign_in: SignIn,
    configure: Configure,
    client: redis.Redis,
    keys: Keys,
    permissions: tuple[str, ...],
    allowed: set[str],
) -> None:
    configure()
    browser = sign_in(*permissions)
    chosen = bury(client, keys, job(1))
    found = set()
    response = browser.get(address())
    if response.status_code == 200:
        found.add("changelist")
        assert ("Queue again" in response.content.decode()) == ("requeue" in allowed)
        assert ("Discard" in response.content.decode()) == ("discard" in allowed)
    for page in ("requeue", "discard"):
        response = browser.post(address(page), {"letter": chosen, "confirmed": "yes"})
        if response.status_code == 302:
            found.add(page)
            bury(client, keys, job(1))
        else:
            assert response.status_code == 403
    assert found == allowed


def test_verbs_need_a_post_and_a_token(operator: Client, client: redis.Redis, keys: Keys) -> None:
    for page in ("requeue", "discard"):
        assert operator.get(address(page)).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="ada"))
    chosen = bury(client, keys, job(1))
    assert strict.post(address("requeue"), {"letter": chosen}).status_code == 403


def test_a_redis_that_is_away_is_said_and_breaks_no_page(
    sign_in: SignIn, configure: Configure
) -> None:
    configure(redis={"addr": "/nowhere/redis.sock", "db": 0, "password": "hunter2"})
    browser = sign_in("view", "change", "delete")
    page = shown(browser)
    assert "nothing is known about the queue" in page
    assert "/nowhere/redis.sock" in page
    assert "hunter2" not in page
    assert "cannot be used" in messages(act(browser, "requeue", "x" * 64))
    assert "cannot be used" in messages(act(browser, "discard", "x" * 64))
    assert browser.get(reverse("admin:index")).status_code == 200


def test_a_wrong_configuration_is_said(sign_in: SignIn, configure: Configure) -> None:
    configure(worker={"count": 0})
    assert "WORKER_COUNT" in shown(sign_in("view"))


def test_keys_of_another_type_are_said(operator: Client, client: redis.Redis, keys: Keys) -> None:
    client.set(keys.queues["high"], "somebody's text")
    client.set(keys.processing("odd"), "x")
    page = shown(operator)
    assert f"{keys.queues['high']} high not a list" in page
    client.set(keys.dead_letter, "x")
    assert "WRONGTYPE" in shown(operator)


def test_an_operator_leaves_a_line_and_an_event(
    operator: Client,
    client: redis.Redis,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobreaper.models import JobEvent
    from jobreaper.redisq import events

    monkeypatch.setattr(events, "is_possible", lambda: True)
    chosen = bury(client, keys, job(1, priority="low"))
    with caplog.at_level(logging.INFO, logger="jobreaper.redisq"):
        operator.post(address("requeue"), {"letter": chosen}, headers={"X-Request-ID": "req-9"})
    (record,) = [each for each in caplog.records if each.name == "jobreaper.redisq"]
    assert record.getMessage() == "dead letter requeued by ada"
    assert vars(record)["redisq"]["request_id"] == "req-9"
    assert vars(record)["redisq"]["job_id"] == "job-1"
    event = JobEvent.objects.get(job_id="job-1")
    assert event.data["type"] == "admin:requeued"
    assert event.data["details"] == {"by": "ada", "stage": "low", "attempt": 1}
