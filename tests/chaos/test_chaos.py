"""Everything that can die dies at random; a ledger counts losses and doubled effects.

Jobs write their effect in the transaction that finishes them. Whatever happened, each job must end,
each success must have its effect once, and nothing else may have one. `CHAOS_SEED` repeats a run's
decisions, though not the machine's timing.
"""

import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobreaper.states import TERMINAL, EventType, FailCode
from project.embedded import Postgres, Redis
from tests.celery.brokers import broker_url
from tests.chaos.house import House
from tests.chaos.settings import LEASE_SEC, MAX_REAPS
from tests.printing import print_table

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(300),  # longer than LONGEST_SEC, which says what was left undone
]

# Four times what it takes: every job ends, but a slow machine may take its time.
LONGEST_SEC = 240.0
CHAOS_SEC = 20.0
MOST_NAMED = 20

# Kind: jobs, stage, max_attempts.
JOBS = {
    "short": (260, "short", 1000),
    "short, two attempts": (30, "short", 2),
    f"poison, {MAX_REAPS} workers": (6, "poison", 1000),
    "poison, two attempts": (4, "killer", 2),
}
# Seconds of work: one job in thirty outlasts a lease.
SHORT_JOB = (0.0, 0.4)
LONG_JOB = (1.2 * LEASE_SEC, 1.8 * LEASE_SEC)
LONG_SHARE = 1 / 30

# How often each thing is done; a worker that starts anew costs seconds of processor time.
TIMES = {
    "child killed": 7,
    "hand-run worker killed": 5,
    "child frozen beyond the lease": 4,
    "worker killed, its children live on": 1,
    "worker killed with its children": 1,
    "worker frozen beyond the lease": 2,
    "worker told to stop": 1,
    "beat killed": 1,
    "reaper killed": 1,
    "queue purged": 4,
    "Redis flushed": 4,
    "sessions of PostgreSQL ended": 4,
    "PostgreSQL restarted": 2,
}


@pytest.fixture(params=["RabbitMQ", "Redis"])
def house(
    request: pytest.FixtureRequest, server: Postgres, open_path: Path, tmp_path: Path
) -> Iterator[tuple[str, House]]:
    """A house on an empty database, nobody at work in it yet."""
    queue = f"chaos-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        if request.param == "Redis":
            redis = Redis(open_path, open_path)
            stack.callback(redis.stop)
            redis.start()
            house = House(server, redis.url, True, queue, tmp_path)
        else:
            # Others use it too: here it is not to be flushed, and only one queue is to be purged.
            house = House(server, broker_url("rabbitmq"), False, queue, tmp_path)
        migrate = house.run("migrate", ["manage.py", "migrate", "--verbosity", "0"])
        assert migrate.process.wait(60) == 0, migrate.log
        house.sql("CREATE TABLE ledger (job_id bigint, epoch bigint, worker text)")
        yield request.param, house


def make_jobs(house: House) -> None:
    """Half of them are due at once, the others while the chaos is on."""
    for kind, (count, stage, max_attempts) in JOBS.items():
        for _ in range(count):
            length = LONG_JOB if random.random() < LONG_SHARE else SHORT_JOB
            payload = {"kind": kind, "sec": random.uniform(*length)}
            wait = random.choice([0, random.uniform(0, 0.8 * CHAOS_SEC)])
            house.sql(
                "INSERT INTO jobs (stage, max_attempts, payload, next_earliest_run_at)"
                " VALUES (%s, %s, %s, statement_timestamp() + %s * interval '1 second')",
                stage,
                max_attempts,
                json.dumps(payload),
                wait,
            )


def unended(house: House) -> list[dict[str, Any]]:
    return house.sql(
        "SELECT id, stage, status, locked_by, lease_epoch, lease_expires_at::text,"
        " dispatched_at::text, next_earliest_run_at::text FROM jobs WHERE status <> ALL (%s)",
        list(TERMINAL),
    )


def do_harm(house: House) -> Counter[str]:
    """Do everything that can be done, each so many times, in a random order at random moments,
    until every job has ended; return how often each was done.
    """
    first = list(house.harms)
    others = [name for name in first for _ in range(TIMES[name] - 1)]
    random.shuffle(first)
    random.shuffle(others)
    # Each once before any twice: the jobs may be at an end before the last moments.
    harms = first + others
    began = time.monotonic()
    ends_at = began + LONGEST_SEC
    moments = sorted(began + random.uniform(0, CHAOS_SEC) for _ in harms)
    done: Counter[str] = Counter()
    while left := unended(house):
        lines = "\n".join(map(str, left[:MOST_NAMED]))
        assert time.monotonic() < ends_at, (
            f"{len(left)} jobs are not at an end within {LONGEST_SEC:g} s:\n{lines}"
        )
        house.keep_up()
        if moments and time.monotonic() >= moments[0]:
            # What finds nobody now is tried again soon.
            for name in harms:
                if house.harms[name]():
                    harms.remove(name)
                    del moments[0]
                    done[name] += 1
                    break
        time.sleep(0.05)
    return done


LEDGER = """
SELECT payload ->> 'kind' AS kind,
       count(*) AS jobs,
       count(*) FILTER (WHERE status = 'success') AS success,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       sum(reap_count) AS lost_workers,
       sum(effects) AS effects,
       count(*) FILTER (WHERE effects > 1) AS doubled,
       count(*) FILTER (WHERE (status = 'success') <> (effects > 0)) AS lost
  FROM jobs
 CROSS JOIN LATERAL (
       SELECT count(*) AS effects FROM ledger WHERE job_id = jobs.id) AS written
 GROUP BY kind
 ORDER BY min(id)
"""

# A claim raises the epoch, and ends in one event: the worker's own, or that of a reap, which raises
# it once more.
NOT_ON_RECORD = """
SELECT id, lease_epoch, reap_count, types
  FROM jobs
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE type = ANY (%s)) AS by_worker,
              count(*) FILTER (WHERE type = ANY (%s)) AS by_reap,
              array_agg(type ORDER BY id) AS types
         FROM job_events
        WHERE job_id = jobs.id::text) AS events
 WHERE lease_epoch <> by_worker + 2 * by_reap
    OR reap_count <> by_reap
"""
BY_WORKER = [
    EventType.JOB_FINISHED,
    EventType.JOB_RETRIED,
    EventType.JOB_FAILED,
    EventType.JOB_RELEASED,
]
BY_REAP = [
    EventType.REAPER_REQUEUED,
    EventType.REAPER_FAILED_TIMEOUT,
    EventType.REAPER_FAILED_POISON,
    EventType.JOB_WORKER_LOST,
]


def test_whatever_dies_no_job_is_lost_and_none_is_done_twice(house: tuple[str, House]) -> None:
    broker, at = house
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(2**32))
    random.seed(seed)
    print(f"\nCHAOS_SEED={seed}")
    began = time.monotonic()
    with at.at_work():
        make_jobs(at)
        done = do_harm(at)

    ledger = at.sql(LEDGER)
    [passes] = at.sql("SELECT count(*), count(*) FILTER (WHERE held) AS held FROM jobreaper_passes")
    rejected = sum(log.count("stale_write_rejected") for log in at.logs)
    events = at.sql("SELECT type, count(*) FROM job_events GROUP BY type ORDER BY type")
    print_table(
        f"{broker}, {time.monotonic() - began:.0f} s",
        [
            [name.replace("_", " ") for name in ledger[0]],
            *(list(row.values()) for row in ledger),
        ],
    )
    print_table("what was done to them", [("", "times"), *done.items()])
    print_table(
        "what came of it",
        [
            ("", "times"),
            *((row["type"], row["count"]) for row in events),
            ("stale writes rejected", rejected),
            ("passes", passes["count"]),
            ("of them held", passes["held"]),
        ],
    )

    by_kind = {row["kind"]: row for row in ledger}
    assert {kind: row["jobs"] for kind, row in by_kind.items()} == {
        kind: count for kind, (count, *_) in JOBS.items()
    }
    assert all((row["doubled"], row["lost"]) == (0, 0) for row in ledger)
    assert by_kind["short"]["success"] == JOBS["short"][0]
    for stage, code, column, cap in (
        ("poison", [FailCode.POISON], "reap_count", MAX_REAPS),
        ("killer", [FailCode.WORKER_LOST, FailCode.TIMEOUT], "attempt_count", 2),
    ):
        assert not at.sql(
            f"SELECT * FROM jobs WHERE stage = %s AND NOT ({column} = %s AND fail_code = ANY (%s))",
            stage,
            cap,
            list(code),
        )
    assert at.sql(NOT_ON_RECORD, BY_WORKER, BY_REAP) == []
    assert rejected > 0
    assert all(done[name] for name in at.harms), "the chaos was too short"
