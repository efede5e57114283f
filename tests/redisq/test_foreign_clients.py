"""Programs that know only the keys, the JSON and the scripts: here `redis-cli` of each server."""

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.reaper import Reaper
from jobreaper.redisq.scripts import source
from jobreaper.redisq.worker import Worker
from tests.redisq import handlers
from tests.redisq.conftest import MakeDocument
from tests.redisq.servers import Server
from tests.waiting import until

Cli = Callable[..., str]

JOB = '{"id":"17","filepath":"/data/a.pdf","origin_queue":"%s"}'


@pytest.fixture
def config(make_document: MakeDocument, shared_server: Server) -> Config:
    document = make_document(redis={"addr": str(shared_server.socket)})
    document["worker"]["handler"] = "tests.redisq.handlers.handle"
    return from_document(document)


@pytest.fixture
def cli(shared_server: Server, config: Config) -> Cli:
    """Say something to Redis as an operator does; return what is printed."""
    program = Path(shared_server.program).with_name("redis-cli")

    def say(*words: str) -> str:
        database = str(config.redis.db)
        command = [str(program), "-s", str(shared_server.socket), "-n", database, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return say


def test_a_job_pushed_with_redis_cli_is_run_and_can_be_looked_at(
    cli: Cli, config: Config, keys: Keys
) -> None:
    handlers.reset()
    low = keys.queues["low"]
    entry = JOB % low
    assert cli("LPUSH", low, entry) == "1"
    worker = Worker(config)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: cli("LRANGE", keys.completed, "0", "-1") == entry)
    assert cli("LLEN", low) == "0"
    assert {cli("TTL", keys.heartbeat(each)) > "0" for each in worker.worker_ids} == {True}
    cli("LPUSH", low, "not a job")
    until(lambda: cli("LLEN", keys.dead_letter) == "1")
    letter = json.loads(cli("LINDEX", keys.dead_letter, "0"))
    assert letter["reason"] == "malformed"
    assert letter["entry"] == "not a job"
    worker.stop()
    thread.join(30)
    worker.client.close()
    assert handlers.started == ["17"]


def test_a_worker_in_another_language_keeps_to_four_rules(
    cli: Cli, config: Config, keys: Keys, tmp_path: Path
) -> None:
    low, mine = keys.queues["low"], keys.processing("other-1")
    cli("LPUSH", low, JOB % low)
    cli("SET", keys.heartbeat("other-1"), "", "PX", "30000")
    entry = cli("LMOVE", low, mine, "RIGHT", "LEFT")
    reaper = Reaper(config)
    assert reaper.run_pass(hold=False, budget=60).requeued == 0
    complete = tmp_path / "complete.lua"
    complete.write_text(source("complete"))
    arguments = [str(complete), mine, keys.heartbeat("other-1"), keys.completed]
    ending = ["--eval", *arguments, ",", entry, "1", "30000"]
    assert cli(*ending) == "1"
    assert cli("LRANGE", keys.completed, "0", "-1") == entry

    # It takes another job, and dies.
    cli("LPUSH", low, JOB % low)
    entry = cli("LMOVE", low, mine, "RIGHT", "LEFT")
    cli("DEL", keys.heartbeat("other-1"))
    assert reaper.run_pass(hold=False, budget=60).requeued == 1
    reaper.client.close()
    again = json.loads(cli("LINDEX", low, "0"))
    assert (again["id"], again["retries"]) == ("17", 1)
    # What it says after that does not count.
    ending = ["--eval", *arguments, ",", entry, "2", "30000"]
    assert cli(*ending) == "0"
    assert cli("LLEN", keys.completed) == "1"
