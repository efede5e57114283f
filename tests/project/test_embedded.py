"""The embedded servers live exactly as long as their users, however those end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

USER = """
import sys
from project import embedded
print(embedded.start(sys.argv[1]), flush=True)
sys.stdin.read()
"""

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def checkout(open_path: Path) -> Path:
    """A working copy of its own: deep, and with a space in its path."""
    path = open_path / "with space" / ("deep" * 30)
    (path / "project").mkdir(parents=True)
    source = Path(__file__).parents[2] / "project" / "embedded.py"
    (path / "project" / "embedded.py").write_bytes(source.read_bytes())
    return path


@pytest.fixture
def start(checkout: Path) -> Iterator[Start]:
    """Start a process that uses the embedded server until its standard input ends."""
    hidden = ("DATABASE_URL", "REDIS_URL", "JOBREAPER_EMBEDDED")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    users: list[subprocess.Popen[str]] = []

    def run(service: str) -> subprocess.Popen[str]:
        user = subprocess.Popen(
            [sys.executable, "-c", USER, service],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        users.append(user)
        return user

    yield run
    for user in users:
        user.communicate()


def url_of(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def server_of(url: str) -> psutil.Process:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (regexp_split_to_array(pg_read_file('postmaster.pid'), '\\n'))[1]::int"
        ).fetchone()
    assert row is not None
    return psutil.Process(row[0])


def has_ended(server: psutil.Process) -> bool:
    # Not every container's first process buries what is handed to it.
    try:
        return not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_users_that_start_together_share_one_server_and_the_last_one_ends_it(start: Start) -> None:
    first, second = start("postgres"), start("postgres")
    url = url_of(first)
    assert url_of(second) == url
    server = server_of(url)

    first.communicate()
    assert not has_ended(server)
    second.communicate()
    assert has_ended(server)


def test_the_server_ends_with_a_user_that_is_killed(start: Start) -> None:
    user = start("postgres")
    server = server_of(url_of(user))
    user.kill()
    server.wait(30)


def test_a_new_user_replaces_the_server_of_a_killed_keeper(start: Start) -> None:
    first = start("postgres")
    orphan = server_of(url_of(first))
    keeper = next(child for child in psutil.Process(first.pid).children())
    keeper.kill()

    second = start("postgres")
    server = server_of(url_of(second))
    assert has_ended(orphan)
    first.communicate()
    second.communicate()
    assert has_ended(server)


def test_redis_survives_the_interrupt_of_one_user_and_ends_with_the_last(start: Start) -> None:
    first, second = start("redis"), start("redis")
    url = url_of(first)
    assert url_of(second) == url
    socket = Path(url.removeprefix("redis+socket://"))
    first.send_signal(signal.SIGINT)
    first.wait()
    assert socket.exists()
    second.communicate()
    assert not socket.exists()
