"""Where the tests' Redis is, in the words of the configuration."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings


def redis_place() -> dict[str, Any]:
    """The section `redis` of a configuration for the tests' Redis."""
    parts = urlsplit(str(settings.REDIS_URL))
    if parts.scheme == "redis+socket":
        return {"addr": parts.path}
    found: dict[str, Any] = {
        "addr": f"{parts.hostname or 'localhost'}:{parts.port or 6379}",
        "db": int(parts.path.strip("/") or 0),
    }
    if parts.username:
        found["username"] = parts.username
    if parts.password:
        found["password"] = parts.password
    return found
