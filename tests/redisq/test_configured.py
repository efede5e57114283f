"""The Redis queue in `manage.py reap` and in the task of Celery's beat."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from django.core.management import CommandError, call_command

from jobreaper import conf
from jobreaper.redisq import configured
from jobreaper.redisq.keys import Keys
from jobreaper.tasks import reap as reap_task
from tests.redisq.places import Places, job
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


@pytest.fixture
def configure(
    settings: Any, make_document: Callable[..., dict[str, Any]], tmp_path: Path
) -> Iterator[Callable[..., None]]:
    """Write a configuration, and name it in the settings."""

    def write(**sections: Any) -> None:
        path = tmp_path / "redisq.yaml"
        path.write_text(yaml.safe_dump(make_document(**sections)))
        settings.JOBREAPER = {"REDIS_QUEUE": path}

    yield write
    conf.reset()


def reap(*options: str) -> str:
    out = io.StringIO()
    call_command("reap", *options, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_reap_takes_jobs_back_from_tables_and_from_lists(
    configure: Callable[..., None], places: Places, keys: Keys, sql: Sql
) -> None:
    configure()
    in_table = Rows(sql, "jobs").plant_expired()
    places.client.lpush(keys.processing("dead"), job(1).encode(), "?")
    said = json.loads(reap("--no-hold", "--format", "json"))
    assert said["tables"]["jobs"]["requeued"] == [in_table]
    assert said["redis_queue"].pop("duration_ms") > 0
    assert said["redis_queue"] == {
        "requeued": 1,
        "dead_lettered": 1,
        "held": False,
        "held_reason": None,
        "whole": True,
        "errors": [],
    }
    assert len(places.queue("low")) == 1


def test_reap_says_in_words_what_it_did(
    configure: Callable[..., None], places: Places, keys: Keys
) -> None:
    configure()
    places.client.lpush(keys.processing("dead"), job(1).encode())
    assert "Redis queue held: Redis came up" in reap()
    assert places.processing() == {"dead": [job(1).encode()]}
    assert "Redis queue: 1 requeued, 0 dead letters" in reap("--no-hold")
    assert "nothing to reap in the Redis queue" in reap("--no-hold")


def test_a_dry_run_and_a_pass_over_some_tables_leave_the_lists_alone(
    configure: Callable[..., None], places: Places, keys: Keys
) -> None:
    configure()
    places.client.lpush(keys.processing("dead"), job(1).encode())
    assert "Redis" not in reap("--dry-run", "--no-hold")
    assert "Redis" not in reap("--table", "jobs", "--no-hold")
    assert places.processing() == {"dead": [job(1).encode()]}


def test_a_redis_that_is_away_does_not_keep_tables_from_being_reaped(
    configure: Callable[..., None], sql: Sql, tmp_path: Path
) -> None:
    configure(redis={"addr": str(tmp_path / "nobody.sock"), "max_retries": 0})
    jobs = Rows(sql, "jobs")
    lost = jobs.plant_expired()
    with pytest.raises(CommandError, match=r"the Redis queue of .*nobody"):
        reap("--no-hold")
    assert jobs.row(lost)["status"] == "queued"


def test_a_configuration_that_is_wrong_is_said_so(configure: Callable[..., None], sql: Sql) -> None:
    configure(worker={"count": 0})
    with pytest.raises(CommandError, match=r"worker\.count \(WORKER_COUNT\)"):
        reap("--no-hold")


def test_without_the_setting_nothing_is_looked_for(places: Places, keys: Keys) -> None:
    places.client.lpush(keys.processing("dead"), job(1).encode())
    assert configured.reap(hold=False) is None
    assert "redis_queue" not in json.loads(reap("--format", "json"))


def test_the_task_of_beat_reaps_the_lists_too(
    configure: Callable[..., None], places: Places, keys: Keys
) -> None:
    configure()
    places.client.lpush(keys.processing("dead"), job(1).encode())
    assert reap_task()["redis_queue"]["held"] is True
    places.client.hset(
        keys.named("reaper"), "since_ms", int((places.client.time()[0] - 3600) * 1000)
    )
    assert reap_task()["redis_queue"]["requeued"] == 1


def test_other_keys_are_gone_round_within_one_reap(
    configure: Callable[..., None], places: Places, keys: Keys, prefix: str
) -> None:
    configure(reaper={"pass_budget": "1ms", "scan_count": 10, "base_delay": "1ms"})
    with places.client.pipeline() as pipe:
        for number in range(1000):
            pipe.set(f"{prefix}-other-{number}", "")
        pipe.execute()
    for number in range(20):
        places.client.lpush(keys.processing(f"dead-{number}"), job(number).encode())
    result = configured.reap(hold=False)
    assert result is not None
    assert (result.whole, result.requeued) == (True, 20)
