"""The worker of ``project/node_worker`` as a process."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict

from jobreaper import conf
from jobreaper.schema import functions
from tests.processes.children import ROOT, Child
from tests.processes.conftest import Start

SOURCE = ROOT / "project" / "node_worker"
# What `short_leases` sets and jobreaper_policies() carries.
SHORT = ("DEFAULT_LEASE_SEC", "JOB_RETRY_BACKOFF_MS_BASE", "JOB_RETRY_BACKOFF_MS_MAX")
NAMES = {"dbname": "PGDATABASE", "host": "PGHOST", "port": "PGPORT", "user": "PGUSER"}
EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture(scope="session")
def installed_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker with its npm package, in a directory of its own."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")
    directory = tmp_path_factory.mktemp("node_worker")
    for name in ("worker.js", "package.json"):
        shutil.copy(SOURCE / name, directory)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install the worker's package: {done.stderr.strip()[-200:]}")
    return directory


def variables(url: str) -> dict[str, str]:
    """The environment that leads the worker to a server."""
    parts = conninfo_to_dict(url)
    return {NAMES[key]: str(value) for key, value in parts.items() if key in NAMES}


@pytest.fixture
def start_node(
    installed_worker: Path, dsn: str, short_leases: None, start: Start
) -> Iterator[Start]:
    """Start the worker; the functions' leases are as short as the others'."""
    functions.policies(connection).create(connection)
    target = variables(dsn)

    def run(**environment: str) -> Child:
        program = ("-c", EXEC, "node", str(installed_worker / "worker.js"), "jobs")
        child = start(*program, **{"DATABASE_URL": "", **target, **environment})
        assert child.answer() == "ready"
        return child

    yield run
    with pytest.MonkeyPatch.context() as patch:
        for name in SHORT:
            patch.delenv(name)
        conf.reset()
        functions.policies(connection).create(connection)
    conf.reset()
