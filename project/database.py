"""Turns a DATABASE_URL into an entry of Django's DATABASES."""

import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

EXAMPLE = "postgresql://user:password@host:5432/name, or postgresql:///name?host=/socket/directory"


def database_from_url(url: str) -> dict[str, Any]:
    """Return the entry for `url`. Parameters for which Django has no key go into OPTIONS."""
    if not url.startswith(("postgresql://", "postgres://")):
        # Repeat only the scheme: the rest may contain a password.
        scheme = url.partition(":")[0] if "://" in url else "no scheme"
        raise ImproperlyConfigured(
            f"DATABASE_URL must name a PostgreSQL server, not {scheme!r}: {EXAMPLE}"
        )
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except ProgrammingError as error:
        # The text that libpq quotes may be a password with an unescaped character.
        why = re.sub('".*"', "…", str(error).strip())
        raise ImproperlyConfigured(f"DATABASE_URL cannot be read ({EXAMPLE}): {why}") from None
    user = parts.pop("user", "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.pop("dbname", user or "postgres"),
        "USER": user,
        "PASSWORD": parts.pop("password", ""),
        "HOST": parts.pop("host", ""),
        "PORT": parts.pop("port", ""),
        "OPTIONS": parts,
        "CONN_HEALTH_CHECKS": True,
    }
