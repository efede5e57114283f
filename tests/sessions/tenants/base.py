"""A database backend that gives each tenant a schema, as packages for this do: a session starts in
the schema that all share, and the search_path is set again for each cursor.
"""

from typing import Any

from django.db.backends.postgresql import base

SHARED = "public"


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection whose cursors look in the schema of the present tenant first."""

    schema_name = SHARED

    def set_schema(self, name: str) -> None:
        """Look in this tenant's schema from the next cursor on."""
        self.schema_name = name

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)  # type: ignore[misc]
        if name is None:
            cursor.cursor.execute(f"SET search_path = {self.schema_name}, {SHARED}")
        return cursor
