"""The example in `project/scans`, as a newcomer runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobreaper.redisq.job import Job
from jobreaper.redisq.loading import load
from jobreaper.redisq.worker import handler_of
from tests.processes.children import ROOT
from tests.redisq.servers import Server


@pytest.fixture
def server(open_path: Path) -> Iterator[Server]:
    """A Redis of the test's own: the example uses the usual names."""
    found = Server(open_path)
    found.start()
    yield found
    found.kill()


def test_its_handler_writes_the_checksum_and_may_run_twice(tmp_path: Path) -> None:
    handler = handler_of(load(ROOT / "project" / "scans" / "redisq.yaml"))
    (tmp_path / "a.pdf").write_text("content")
    job = Job(id="1", filepath=str(tmp_path / "a.pdf"))
    handler(job)
    handler(job)
    assert {path.name for path in tmp_path.iterdir()} == {"a.pdf", "a.pdf.sha256"}
    checked = subprocess.run(
        ["sha256sum", "--check", "a.pdf.sha256"], cwd=tmp_path, capture_output=True, check=False
    )
    assert checked.returncode == 0


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_file_is_done_although_a_worker_is_killed(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "project.scans", "24"],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": f"redis+socket://{server.socket}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "one process was killed after" in done.stdout
    assert "all 24 files are done" in done.stdout
