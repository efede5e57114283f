"""``BuildIndex``: an index of a large table under traffic."""

from __future__ import annotations

from django.db import models
from django.db.migrations.state import ProjectState

from jobreaper.base import LeaseIndex
from jobreaper.operations.of_table import OfTable, Place
from jobreaper.schema.live_table import LiveTable


class BuildIndex(OfTable):
    """Add an index of ``Meta.indexes`` to a large table under traffic.

    It does what Django's ``AddIndexConcurrently`` does, and three things more. If you run it again
    after an interruption, it builds the index again. On a partitioned table it builds the index
    partition by partition. On a new table it waits for nobody. The migration must have
    ``atomic = False``.
    """

    def __init__(self, model_name: str, index: models.Index) -> None:
        super().__init__(model_name)
        self.index = index

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the index to the model."""
        state.add_index(app_label, self.model_name.lower(), self.index)

    def _make(self, place: Place) -> None:
        """Build the index.

        Raises:
            NotSupportedError: the migration runs in a transaction.
        """
        self._table(place).build_indexes()

    def _drop(self, place: Place) -> None:
        """Drop the index."""
        self._table(place).drop_indexes()

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Build the index {self.index.name} on {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_{self.index.name.lower()}"

    def _table(self, place: Place) -> LiveTable:
        whole = place.model._meta.db_table
        bare = whole.replace('"', "").replace(".", "_")
        # A suffix for which every table's name leaves room.
        suffix = self.index.name.removeprefix(f"idx_{bare}_")[-30:]

        def of(table: str) -> list[models.Index]:
            index = self.index.clone()
            if table != whole:
                index.name = LeaseIndex.named(table, suffix, "pk").name
            return [index]

        return self._live_table(place, of)
