"""Show the Redis queue: make files, start workers, kill one of them, and see every file done."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from project import embedded

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).parent / "redisq.yaml"

DEFAULT_FILES = 80
SIZE = 64 * 1024 * 1024
PATIENCE_SEC = 300.0


def main() -> None:
    """Run the example in a directory that is gone afterwards. The argument is how many files."""
    number_of_files = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FILES
    url = os.environ.get("REDIS_URL") or embedded.start("redis")
    with tempfile.TemporaryDirectory(prefix="jobreaper-scans-") as directory:
        files = [Path(directory) / f"scan-{number}.pdf" for number in range(number_of_files)]
        for file in files:
            # The system keeps no zeros on the disk.
            with open(file, "wb") as content:
                content.write(file.name.encode())
                content.truncate(SIZE)
            # As if it had been there for a while: a new file waits until it is whole.
            os.utime(file, (1, 1))
        environment = {**os.environ, "PRODUCER_SCAN_DIR": directory, **_place(url)}
        workers = [_start("worker", environment) for _ in range(2)]
        try:
            _run(workers, files, environment)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()


def _run(
    workers: list[subprocess.Popen[bytes]], files: list[Path], environment: dict[str, str]
) -> None:
    began = time.monotonic()
    _start("producer", environment, "--once").wait()
    print(f"{len(files)} files were enqueued for 2 processes of 4 workers each")
    _until(lambda: _done(files) > len(files) // 4)
    workers[0].send_signal(signal.SIGKILL)
    print(f"one process was killed after {_done(files)} files")
    _until(lambda: _done(files) == len(files))
    print(f"all {_done(files)} files are done, after {time.monotonic() - began:.1f} s")


def _start(role: str, environment: dict[str, str], *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "manage.py", "redisq", "--role", role, "--config", str(CONFIG)]
    return subprocess.Popen([*command, *more], cwd=ROOT, env=environment)


def _place(url: str) -> dict[str, str]:
    """Return the variables of the configuration for the Redis at ``url``."""
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        return {"REDIS_ADDR": parts.path}
    return {
        "REDIS_ADDR": f"{parts.hostname}:{parts.port or 6379}",
        "REDIS_DB": parts.path.strip("/") or "0",
        "REDIS_PASSWORD": parts.password or "",
    }


def _done(files: list[Path]) -> int:
    return sum(file.with_name(f"{file.name}.sha256").exists() for file in files)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SEC
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE_SEC:g} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
