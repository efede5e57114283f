"""Databases with the rows of a product's month, and as many finished jobs as one asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.core.management import call_command
from django.db import connection

QUEUED, RUNNING, EXPIRED = 98_000, 2_000, 100
PERIOD = timedelta(days=30)

# The jobs are numbered as they were made, evenly over the month, and these rules tell everything of
# a number. So their events need no join with them, and no sort.
RULES = """
CREATE OR REPLACE FUNCTION pg_temp.made_at(k bigint) RETURNS timestamptz STABLE LANGUAGE sql AS
$$ SELECT '{begin}'::timestamptz + k * '{step}'::interval $$;

CREATE OR REPLACE FUNCTION pg_temp.key(k bigint) RETURNS uuid STABLE LANGUAGE sql AS
$$ SELECT (lpad(to_hex(floor(extract(epoch FROM pg_temp.made_at(k)) * 1000)::bigint), 12, '0')
           || '7' || lpad(to_hex(k % 4096), 3, '0') || '8' || left(md5(k::text), 15))::uuid $$;

CREATE OR REPLACE FUNCTION pg_temp.kind(k bigint) RETURNS text STABLE LANGUAGE sql AS
$$ SELECT (ARRAY['mail', 'mail', 'mail', 'mail', 'clip', 'clip', 'asr', 'export'])[1 + k % 8] $$;

CREATE OR REPLACE FUNCTION pg_temp.ended(k bigint) RETURNS text STABLE LANGUAGE sql AS
$$ SELECT CASE WHEN k % 100 = 0 THEN 'cancelled' WHEN k % 100 < 6 THEN 'failed'
               ELSE 'success' END $$;

CREATE OR REPLACE FUNCTION pg_temp.code(k bigint) RETURNS text STABLE LANGUAGE sql AS
$$ SELECT (ARRAY['timeout', 'SMTPError', 'ValueError', 'poison', 'HTTPError'])[k % 100] $$;
"""
FINISHED = """
INSERT INTO jobreaper_jobs (id, type, stage, queue, org_id, payload, result, created_at, updated_at,
                            status, attempt_count, lease_epoch, claimed_at, last_heartbeat_at,
                            finished_at, fail_code, fail_reason)
SELECT pg_temp.key(k), kind, kind, CASE WHEN k %% 10 = 0 THEN 'slow' ELSE 'default' END,
       'org ' || k %% 1000, jsonb_build_object('n', k, 'to', 'somebody@example.org'),
       CASE ended WHEN 'success' THEN '{"sent": 1}'::jsonb END, at, at + interval '5 s',
       ended, 1, 1, at + interval '2 s', at + interval '4 s', at + interval '5 s',
       code, 'the reason in words, as long as this: ' || code
  FROM (SELECT k, pg_temp.made_at(k) AS at, pg_temp.kind(k) AS kind, pg_temp.ended(k) AS ended,
               pg_temp.code(k) AS code
          FROM generate_series(1, %(finished)s) AS k) AS numbered
"""
# Two thirds are due, some for hours; a few never had a time; the others are for later.
WAITING = """
INSERT INTO jobreaper_jobs (id, type, stage, queue, org_id, payload, priority, next_earliest_run_at)
SELECT pg_temp.key(k), pg_temp.kind(k), pg_temp.kind(k),
       CASE WHEN n %% 10 = 0 THEN 'slow' ELSE 'default' END, 'org ' || n %% 1000,
       jsonb_build_object('n', k), CASE WHEN n %% 100 = 7 THEN 5 ELSE 0 END,
       CASE WHEN n %% 20 <> 0 THEN now() + (n - %(queued)s * 2 / 3) * interval '100 ms' END
  FROM (SELECT n, %(finished)s + n AS k FROM generate_series(1, %(queued)s) AS n) AS numbered
"""
IN_HAND = """
INSERT INTO jobreaper_jobs (id, type, stage, org_id, payload, status, attempt_count, lease_epoch,
                            locked_by, claimed_at, last_heartbeat_at, lease_expires_at)
SELECT pg_temp.key(k), pg_temp.kind(k), pg_temp.kind(k), 'org ' || n %% 1000,
       jsonb_build_object('n', k), 'processing', 1, 1, 'worker:' || n %% 20,
       now() - n * interval '10 s', now(),
       now() + CASE WHEN n <= %(expired)s THEN n * interval '-10 s' ELSE interval '1 day' END
  FROM (SELECT n, %(finished)s + %(queued)s + n AS k
          FROM generate_series(1, %(running)s) AS n) AS numbered
"""
# Two of each of the latest jobs. One in a thousand lost its worker, and some of these all of them.
EVENTS = """
INSERT INTO job_events (job_id, data, at)
SELECT pg_temp.key(k)::text,
       jsonb_build_object(
           'type', type, 'table', 'jobreaper_jobs',
           'details', CASE type WHEN 'job:enqueued' THEN '{}'::jsonb ELSE jsonb_build_object(
               'attempt', 1, 'epoch', 1, 'stage', pg_temp.kind(k),
               'locked_by', 'worker:' || k %% 20,
               'duration_ms', k %% 60000, 'queue_wait_ms', k %% 5000) END),
       pg_temp.made_at(k) + CASE type WHEN 'job:enqueued' THEN '0' ELSE '5 s' END::interval
  FROM (SELECT k, CASE WHEN n %% 2 = 1 THEN 'job:enqueued'
                       WHEN k %% 200000 = 17 THEN 'reaper:failed(poison)'
                       WHEN k %% 1000 = 17 THEN 'reaper:requeued'
                       ELSE CASE pg_temp.ended(k) WHEN 'success' THEN 'job:finished'
                                ELSE 'job:' || pg_temp.ended(k) END END AS type
          FROM (SELECT n, %(finished)s - (%(events)s - n) / 2 AS k
                  FROM generate_series(1, %(events)s) AS n) AS numbered) AS event
"""
# Of a table without the index that finds the jobs of a status by their end.
OF_ONES_OWN = """
INSERT INTO jobs (stage, status, attempt_count, lease_epoch, finished_at, fail_code, fail_reason)
SELECT CASE WHEN n %% 1000 = 0 THEN 'rare' ELSE 'clip' END, pg_temp.ended(n), 1, 1,
       pg_temp.made_at(n * 10), pg_temp.code(n), 'the reason in words: ' || pg_temp.code(n)
  FROM generate_series(1, %(finished)s / 10) AS n
"""
# The first of them are in front of the line.
REFUSED = """
INSERT INTO jobreaper_refused_rows ("table", verb, key, error, next_try_at)
SELECT 'jobreaper_jobs', 'claim', pg_temp.key(%(finished)s + n)::text, 'a constraint of the table',
       now() + interval '1 day'
  FROM generate_series(1, 2000) AS n
"""
PASSES = """
INSERT INTO jobreaper_passes (started_at, duration_ms, trigger, reaper, counts, requeued, error)
SELECT now() - (10000 - n) * interval '30 s', n %% 50, 'loop', 'reaper:1',
       jsonb_build_object('jobreaper_jobs', jsonb_build_object('requeued', n %% 3, 'failed', 0)),
       n %% 3, CASE WHEN n %% 2000 = 0 THEN 'no connection' END
  FROM generate_series(1, 10000) AS n
"""
WORKERS = """
INSERT INTO jobreaper_workers (worker, kind, host, pid, version, leases, is_direct)
SELECT 'worker:' || n, 'work', 'host ' || n, n, '1', 100, false FROM generate_series(0, 19) AS n
"""
FILLINGS = (FINISHED, WAITING, IN_HAND, EVENTS, OF_ONES_OWN, REFUSED, PASSES, WORKERS)

INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
  FROM pg_index
 WHERE indrelid IN ('jobreaper_jobs'::regclass, 'job_events'::regclass, 'jobs'::regclass)
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""


@contextmanager
def database(name: str, finished: int, events: int, *, kept: bool) -> Iterator[None]:
    """Make and fill a database, and drop it in the end. One that is kept is there the next time."""
    with connection._nodb_cursor() as cursor:
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [name])
        is_there = cursor.fetchone() is not None
        if is_there and not kept:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        if not (is_there and kept):
            cursor.execute(f'CREATE DATABASE "{name}"')
    is_filled = is_there and kept
    try:
        if not is_filled:
            with connected_to(name):
                call_command("migrate", verbosity=0)
                fill(finished, events)
        is_filled = True
        yield
    finally:
        if not (kept and is_filled):
            with connection._nodb_cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def connected_to(name: str) -> Iterator[None]:
    """Lead Django's connection to another database, in a session of its own. It has no parallel
    workers, whose processor time is not in that of the session.
    """
    settings = connection.settings_dict
    before, options = settings["NAME"], settings["OPTIONS"]
    connection.close()
    settings["NAME"] = name
    settings["OPTIONS"] = {**options, "options": "-c max_parallel_workers_per_gather=0"}
    try:
        yield
    finally:
        connection.close()
        settings["NAME"], settings["OPTIONS"] = before, options


def fill(finished: int, events: int) -> None:
    """Fill the database with so many finished jobs and events, beside the same queue."""
    step = PERIOD / (finished + QUEUED)
    rules = RULES.format(
        begin=(datetime.now(UTC) - finished * step).isoformat(),
        step=f"{step.total_seconds():.6f} s",
    )
    numbers = {
        "finished": finished,
        "events": events,
        "queued": QUEUED,
        "running": RUNNING,
        "expired": EXPIRED,
    }
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '512MB'")
        cursor.execute(rules)
        cursor.execute(INDEXES)
        indexes = cursor.fetchall()
        # Making them when the rows are there takes a fraction of the time.
        for name, _ in indexes:
            cursor.execute(f"DROP INDEX {name}")
        for statement in FILLINGS:
            cursor.execute(statement, numbers)
        for _, definition in indexes:
            cursor.execute(definition)
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("CHECKPOINT")
