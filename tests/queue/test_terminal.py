"""`manage.py work` at a terminal."""

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from jobreaper import enqueue
from tests.processes.children import ROOT
from tests.queue.processes import PATIENCE_SEC
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def test_a_terminal_shows_what_runs_below_the_log(database_url: str) -> None:
    job = enqueue("hang", {"how": "sleep"})
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
        "DATABASE_URL": database_url,
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    shown = b""

    def screen() -> str:
        nonlocal shown
        with suppress(BlockingIOError, OSError):
            shown += os.read(ours, 65536)
        return shown.decode(errors="replace")

    process = subprocess.Popen(
        [sys.executable, "manage.py", "work", "--shutdown-timeout", "0", "--no-interrupt"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        until(lambda: "1 running" in screen() and str(job.pk) in screen(), PATIENCE_SEC)
        until(lambda: "job_claimed" in screen(), PATIENCE_SEC)
        process.send_signal(signal.SIGTERM)
        until(lambda: screen() and process.poll() is not None, PATIENCE_SEC)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
