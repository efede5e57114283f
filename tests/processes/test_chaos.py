"""Everything that can die dies at random; a ledger counts losses and duplicated effects."""

import contextlib
import random
import signal
import time

import psutil
import pytest

from jobreaper.states import EventType, Status
from tests.processes.children import Child
from tests.processes.conftest import LEASE_SEC, Ledger, Sql, Start
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.django_db(transaction=True),
]

WORKERS = 20
REAPERS = 2
JOBS = 400
CHAOS_SEC = 10.0


def start_reaper(start: Start) -> Child:
    return start("manage.py", "reap", "--loop", "--format", "json", "--batch-size", "3")


def kill_at_random(fleet: Child, reapers: list[Child], start: Start) -> dict[str, int]:
    """Kill and freeze workers and kill reapers for a while; return how often each was done."""
    done = {"workers killed": 0, "workers frozen": 0, "reapers killed": 0}
    frozen: dict[psutil.Process, float] = {}
    ends_at = time.monotonic() + CHAOS_SEC
    while (now := time.monotonic()) < ends_at:
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker in [w for w, until_then in frozen.items() if until_then < now]:
                del frozen[worker]
                worker.resume()
            workers = psutil.Process(fleet.pid).children()
            what = random.choices(list(done), weights=[6, 2, 1])[0]
            if what == "reapers killed":
                reapers.pop(0).kill()
                reapers.append(start_reaper(start))
            elif what == "workers frozen":
                worker = random.choice(workers)
                worker.suspend()
                frozen[worker] = now + random.uniform(0.5, 2) * LEASE_SEC
            else:
                random.choice(workers).kill()
            done[what] += 1
        time.sleep(random.uniform(0, 0.3))
    for worker in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()
    return done


def test_workers_and_reapers_killed_at_random_lose_no_job_and_do_none_twice(
    start: Start, ledger: Ledger, sql: Sql
) -> None:
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"seed {seed}")
    sql("INSERT INTO jobs (max_attempts) SELECT 1000 FROM generate_series(1, %s)", JOBS)
    fleet = start("-m", "tests.processes.fleet", str(WORKERS))
    assert fleet.answer() == "ready"
    reapers = [start_reaper(start) for _ in range(REAPERS)]

    done = kill_at_random(fleet, reapers, start)
    ended = "SELECT 1 FROM jobs HAVING bool_and(status IN ('success', 'failed', 'cancelled'))"
    until(lambda: sql(ended), timeout_sec=60)
    fleet.process.send_signal(signal.SIGTERM)

    effects = [effect["job_id"] for effect in ledger()]
    lost = JOBS - len(set(effects))
    doubled = len(effects) - len(set(effects))
    requeued = sql("SELECT count(*) FROM job_events WHERE type = %s", EventType.REAPER_REQUEUED)
    print(done, {"requeued": requeued[0]["count"], "lost": lost, "doubled": doubled})
    assert all(done.values()), "the chaos was too short to say anything"
    assert requeued[0]["count"] > 0
    assert (lost, doubled) == (0, 0)
    assert sql("SELECT status, count(*) FROM jobs GROUP BY 1") == [
        {"status": Status.SUCCESS, "count": JOBS}
    ]
    # Every attempt is on record: each claim ended in a reap or in the success.
    assert not sql(
        "SELECT id FROM jobs WHERE attempt_count <> reap_count + 1"
        " OR lease_epoch <> attempt_count + reap_count"
        " OR reap_count <> (SELECT count(*) FROM job_events WHERE job_id = jobs.id::text"
        "                      AND type = 'reaper:requeued')"
        " OR 1 <> (SELECT count(*) FROM job_events WHERE job_id = jobs.id::text"
        "             AND type = 'job:finished')"
    )
