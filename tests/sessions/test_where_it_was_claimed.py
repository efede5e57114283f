"""A lease belongs to the session of its claim: its search_path, its role and what else was set."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, connections, transaction
from pytest_django import Settings

from jobreaper import Lease, claim, claim_next
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.protocol.holding import holding_of
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.sessions.conftest import TENANTS, reconnected, schema
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

# A lease that only heartbeats can make last as long as these tests wait.
LEASE_SEC = 1.5


@pytest.fixture(autouse=True)
def short_leases(settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.1, "DEFAULT_LEASE_SEC": LEASE_SEC}


def outlast(jobs: Rows, lease: Lease) -> None:
    """Wait until the lease would have run out twice."""
    claimed = jobs.row(lease.pk)["claimed_at"]
    until(lambda: (jobs.now() - claimed).total_seconds() > 2 * LEASE_SEC)


@pytest.fixture
def two(tenants: None, sql: Sql) -> dict[str, Lease]:
    """The same job of two tenants, by the looks of it: same key, same epoch, same worker."""
    leases = {}
    for name in TENANTS:
        with schema(name):
            lease = claim(Job, Rows(sql, f"{name}.jobs").plant())
            assert lease is not None
            leases[name] = lease
    first, second = leases.values()
    assert (first.pk, first.epoch, first.worker) == (second.pk, second.epoch, second.worker)
    assert not first.lost
    return leases


def test_heartbeats_renew_each_lease_where_it_was_claimed(two: dict[str, Lease], sql: Sql) -> None:
    decoy = Rows(sql, "public.jobs").plant(id=two["tenant_a"].pk)
    with two["tenant_a"], two["tenant_b"]:
        outlast(Rows(sql, "tenant_b.jobs"), two["tenant_b"])
        for lease in two.values():
            lease.check()
    for name, lease in two.items():
        lease.finish()
        assert Rows(sql, f"{name}.jobs").row(lease.pk)["status"] == "success"
    assert Rows(sql, "public.jobs").row(decoy)["status"] == "queued"


def save(lease: Lease) -> None:
    lease.job.stage = "saved"
    lease.job.save(update_fields=["stage"])


VERBS: dict[str, Callable[[Lease], object]] = {
    "heartbeat": Lease.heartbeat,
    "save": save,
    "finish": Lease.finish,
    "release": Lease.release,
    "fail": lambda lease: lease.fail("code"),
}


@pytest.mark.parametrize("place", ["alone", "in a transaction"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_a_connection_that_has_moved_on_finds_its_own_job(
    two: dict[str, Lease], sql: Sql, verb: str, place: str
) -> None:
    [mine, other] = [Rows(sql, f"{name}.jobs") for name in TENANTS]
    lease = two["tenant_a"]
    before = mine.row(lease.pk), other.row(lease.pk)
    block = transaction.atomic() if place == "in a transaction" else nullcontext()
    with schema("tenant_b"), block:
        VERBS[verb](lease)
        # And the connection is where it was.
        assert Job.objects.get(pk=lease.pk).lease_epoch == two["tenant_b"].epoch
        assert Job.objects.get(pk=lease.pk).status == "processing"
    assert mine.row(lease.pk) != before[0]
    assert other.row(lease.pk) == before[1]
    assert sql("SELECT count(*) AS n FROM job_events WHERE type = 'job:stale_write_rejected'") == [
        {"n": 0}
    ]


def test_where_not_even_the_table_is_found(tenants: None, sql: Sql) -> None:
    with schema("tenant_a"):
        lease = claim(Job, Rows(sql, "tenant_a.jobs").plant())
    assert lease is not None
    with connection.cursor() as cursor:
        # As one of Django's cursors is made, this backend sets the path again.
        cursor.execute("ALTER TABLE public.jobs RENAME TO put_away")
    try:
        lease.finish()
    finally:
        sql("ALTER TABLE put_away RENAME TO jobs")
    assert Rows(sql, "tenant_a.jobs").row(lease.pk)["status"] == "success"


def test_a_lost_lease_is_lost_in_its_own_schema(two: dict[str, Lease], sql: Sql) -> None:
    lease = two["tenant_a"]
    sql("UPDATE tenant_a.jobs SET status = 'cancelled', lease_epoch = lease_epoch + 1")
    with schema("tenant_b"), pytest.raises(Exception, match="the job is now cancelled at epoch 2"):
        lease.finish()
    [event] = sql("SELECT data FROM job_events WHERE type = 'job:stale_write_rejected'")
    assert event["data"]["details"]["present_status"] == "cancelled"


def test_a_group_of_jobs_of_several_tenants_ends_each_where_it_was_found(
    tenants: None, sql: Sql, settings: Settings
) -> None:
    # A row that a heartbeat has locked would be left for later.
    settings.JOBREAPER = {}
    runs = []
    for name in TENANTS:
        for _ in range(2):
            Rows(sql, f"{name}.jobs").plant()
        with schema(name):
            runs += claim_group(table_of(Job), 10)
    ending = finish_group(runs)
    assert (len(ending.ended), ending.lost) == (4, [])
    for name in TENANTS:
        assert sql(f"SELECT DISTINCT status FROM {name}.jobs") == [{"status": "success"}]


@pytest.fixture
def roles(sql: Sql) -> Iterator[tuple[str, str]]:
    """A role to log in, which may nothing, and one that it may become, whose rows depend on a
    setting.
    """
    database = connection.settings_dict["NAME"]
    login, worker = f'"Login of {database}"', f'"Worker of {database}"'
    sql(f"""
        CREATE ROLE {login} LOGIN NOINHERIT; CREATE ROLE {worker}; GRANT {worker} TO {login};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {worker};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {worker};
        ALTER TABLE jobs ENABLE ROW LEVEL SECURITY;
        CREATE POLICY tenants ON jobs USING (stage = current_setting('app.tenant', true))
    """)
    yield login.strip('"'), worker
    sql(f"""
        DROP POLICY tenants ON jobs; ALTER TABLE jobs DISABLE ROW LEVEL SECURITY;
        DROP OWNED BY {worker}; DROP ROLE {login}; DROP ROLE {worker}
    """)


def test_heartbeats_and_verbs_have_the_role_and_the_settings_of_the_claim(
    roles: tuple[str, str], sql: Sql, settings: Settings
) -> None:
    settings.JOBREAPER = {**settings.JOBREAPER, "SESSION_SETTINGS": ["app.tenant"]}
    jobs = Rows(sql, "jobs")
    keys = [jobs.plant(stage=tenant) for tenant in ("ann", "bob")]
    login, worker = roles
    with reconnected(USER=login):
        connections["default"].ensure_connection()
        session: Any = connections["default"].connection
        session.execute(f"SET ROLE {worker}")
        leases = []
        for tenant in ("ann", "bob"):
            session.execute("SELECT set_config('app.tenant', %s, false)", [tenant])
            leases += claim_next(Job, 5)
        session.execute("RESET ROLE")
        session.execute("SET app.tenant = 'nobody'")
        assert [lease.pk for lease in leases] == keys
        with leases[0], leases[1]:
            outlast(jobs, leases[1])
            for lease in leases:
                lease.check()
        for lease in leases:
            lease.finish()
        assert session.execute("SHOW app.tenant").fetchone() == ("nobody",)
    assert [jobs.row(key)["status"] for key in keys] == ["success", "success"]
    assert holding_of(leases[0]).session != holding_of(leases[1]).session
