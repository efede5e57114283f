"""A pgbouncer of the test's own before the test database, of Debian's package `pgbouncer`."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.waiting import until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="pgbouncer is not installed on this machine"
)

# For transaction mode: fewer than there are clients, so that each serves them in turn.
SERVER_CONNECTIONS = {"transaction": 2, "session": 20}

CONFIGURATION = """
[databases]
* = {server}
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
server_reset_query =
"""


@contextmanager
def pgbouncer(dsn: str, mode: str) -> Iterator[str]:
    """Start one in this mode, and yield a DATABASE_URL that leads through it. Nothing is reset on a
    connection to the server before it serves the next client.
    """
    assert PROGRAM is not None
    server = {"user": getpass.getuser(), **conninfo_to_dict(dsn)}
    name = server.pop("dbname")
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as home:
        file = Path(home, "pgbouncer.ini")
        file.write_text(
            CONFIGURATION.format(
                server=" ".join(f"{key}={value}" for key, value in server.items()),
                directory=home,
                mode=mode,
                size=SERVER_CONNECTIONS[mode],
            )
        )
        # pgbouncer refuses to run as root.
        user = "nobody" if os.geteuid() == 0 else None
        if user:
            shutil.chown(home, user)
        bouncer = subprocess.Popen(
            [PROGRAM, str(file)], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: Path(home, ".s.PGSQL.6432").exists())
            parts = {"host": home, "port": "6432", "user": server["user"], "dbname": name}
            yield "postgresql:///?" + urlencode(parts, quote_via=quote)
        finally:
            bouncer.kill()
            bouncer.wait()
