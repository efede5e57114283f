"""Tables as other Django products have them, with the columns that matter to a job."""

from typing import Any, NamedTuple


class Shape(NamedTuple):
    """A product's table, and how a job whose worker was lost hours ago stands in it."""

    table: str
    definition: str
    drop: tuple[str, ...]
    lost: str
    healthy: str
    # What a reclaim makes of the lost one.
    outcome: str
    after: dict[str, Any]
    # The parts that `manage.py check` finds missing.
    missing: set[str]


AWX = Shape(
    table="main_unifiedjob",
    definition="""
CREATE TABLE main_unifiedjob (
    id serial PRIMARY KEY,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now(),
    description text NOT NULL DEFAULT '',
    name varchar(512) NOT NULL,
    launch_type varchar(20) NOT NULL,
    cancel_flag boolean NOT NULL DEFAULT false,
    status varchar(20) NOT NULL,
    failed boolean NOT NULL DEFAULT false,
    started timestamptz,
    finished timestamptz,
    canceled_on timestamptz,
    elapsed numeric(12, 3) NOT NULL DEFAULT 0,
    job_args text NOT NULL DEFAULT '',
    job_explanation text NOT NULL DEFAULT '',
    result_traceback text NOT NULL DEFAULT '',
    celery_task_id varchar(100) NOT NULL DEFAULT '',
    execution_node text NOT NULL DEFAULT '',
    controller_node text NOT NULL DEFAULT '',
    polymorphic_ctype_id int
)""",
    drop=("TABLE main_unifiedjob",),
    lost="""
INSERT INTO main_unifiedjob (name, launch_type, status, started, execution_node)
VALUES ('deploy', 'manual', 'running', now() - interval '3 hours', 'node-1') RETURNING id""",
    healthy="""
INSERT INTO main_unifiedjob
       (name, launch_type, status, started, execution_node, heartbeat_at)
VALUES ('deploy', 'manual', 'running', now() - interval '3 hours', 'node-1', now())
RETURNING id""",
    outcome="failed",
    after={
        "status": "error",
        "execution_node": "",
        "job_explanation": "RECLAIMED_TTL: Exceeded TTL (15 min)",
    },
    missing=set(),
)

PULP = Shape(
    table="core_task",
    definition="""
CREATE TABLE core_task (
    pulp_id uuid PRIMARY KEY,
    pulp_created timestamptz NOT NULL DEFAULT now(),
    pulp_last_updated timestamptz,
    state text NOT NULL,
    name text NOT NULL,
    logging_cid text NOT NULL DEFAULT '',
    started_at timestamptz,
    finished_at timestamptz,
    unblocked_at timestamptz,
    error jsonb,
    enc_args bytea,
    enc_kwargs bytea,
    parent_task_id uuid,
    task_group_id uuid,
    reserved_resources_record text[],
    immediate boolean NOT NULL DEFAULT false,
    app_lock_id uuid
)""",
    drop=("TABLE core_task",),
    lost="""
INSERT INTO core_task (pulp_id, state, name, started_at, app_lock_id)
VALUES (gen_random_uuid(), 'running', 'sync', now() - interval '13 hours', gen_random_uuid())
RETURNING pulp_id AS id""",
    healthy="""
INSERT INTO core_task (pulp_id, state, name, started_at, app_lock_id)
VALUES (gen_random_uuid(), 'running', 'sync', now() - interval '3 hours', gen_random_uuid())
RETURNING pulp_id AS id""",
    outcome="failed",
    after={"state": "failed", "app_lock_id": None, "error": None},
    missing={"last_heartbeat_at", "fail_reason"},
)

NAUTOBOT = Shape(
    table="extras_jobresult",
    definition="""
CREATE TABLE extras_jobresult (
    id uuid PRIMARY KEY,
    job_model_id uuid,
    name varchar(255) NOT NULL,
    task_name varchar(255),
    date_created timestamptz NOT NULL DEFAULT now(),
    date_started timestamptz,
    date_done timestamptz,
    user_id uuid,
    status varchar(30) NOT NULL,
    result jsonb,
    worker varchar(100),
    task_args jsonb NOT NULL DEFAULT '[]',
    task_kwargs jsonb NOT NULL DEFAULT '{}',
    celery_kwargs jsonb NOT NULL DEFAULT '{}',
    traceback text,
    meta jsonb,
    scheduled_job_id uuid
)""",
    drop=("TABLE extras_jobresult",),
    lost="""
INSERT INTO extras_jobresult (id, name, status, date_started, worker)
VALUES (gen_random_uuid(), 'Sync Devices', 'STARTED', now() - interval '1 hour', 'celery@a')
RETURNING id""",
    healthy="""
INSERT INTO extras_jobresult (id, name, status, date_started, worker)
VALUES (gen_random_uuid(), 'Anything Else', 'STARTED', now() - interval '9 hours', 'celery@a')
RETURNING id""",
    outcome="failed",
    after={
        "status": "FAILURE",
        "worker": None,
        "traceback": "RECLAIMED_TTL: Exceeded TTL (30 min)",
    },
    missing=set(),
)

PROWLER = Shape(
    table="scans",
    definition="""
CREATE TYPE state AS ENUM
    ('available', 'scheduled', 'executing', 'completed', 'failed', 'cancelled');
CREATE TYPE scan_trigger AS ENUM ('scheduled', 'manual');
CREATE TABLE scans (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    name varchar(100),
    trigger scan_trigger NOT NULL,
    state state NOT NULL DEFAULT 'available',
    unique_resource_count int NOT NULL DEFAULT 0,
    progress int NOT NULL DEFAULT 0,
    scanner_args jsonb,
    duration int,
    scheduled_at timestamptz,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    completed_at timestamptz,
    next_scan_at timestamptz,
    task_id uuid,
    provider_id uuid NOT NULL
);
ALTER TABLE scans ENABLE ROW LEVEL SECURITY;
ALTER TABLE scans FORCE ROW LEVEL SECURITY""",
    drop=("TYPE state", "TYPE scan_trigger", "TABLE scans"),
    lost="""
INSERT INTO scans (id, tenant_id, provider_id, trigger, state, started_at)
VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'manual', 'executing',
        now() - interval '1 hour')
RETURNING id""",
    healthy="""
INSERT INTO scans (id, tenant_id, provider_id, trigger, state, started_at)
VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'scheduled', 'executing',
        now() - interval '1 hour')
RETURNING id""",
    outcome="failed",
    after={"state": "failed"},
    missing={"locked_by", "fail_reason"},
)

SHAPES = {
    "AWX: main_unifiedjob": AWX,
    "pulpcore: core_task": PULP,
    "Nautobot: extras_jobresult": NAUTOBOT,
    "Prowler: scans": PROWLER,
}
