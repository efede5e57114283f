"""``GuardLease``: a trigger against writes from stale copies."""

from __future__ import annotations

from jobreaper.operations.of_table import OfTable, Place
from jobreaper.schema import guard
from jobreaper.schema.live_table import LiveTable
from jobreaper.tables import JobTable


class GuardLease(OfTable):
    """Let the table of a ``LeasedJob`` refuse an UPDATE from a stale copy of a row: one that lowers
    the epoch, or that makes a job which has ended queued or processing at the same epoch. Django
    raises ``IntegrityError``.

    ``LeasedJob.save()`` sends no such UPDATE. The trigger is for what goes past it: a queryset's
    ``update()``, data migrations, programs in other languages. It costs a comparison an UPDATE.
    """

    def _make(self, place: Place) -> None:
        """Make the trigger.

        Raises:
            NotLeasable: the model has not the fields of a ``LeasedJob``.
        """
        _run(place, guard.creating(JobTable(model=place.model)))

    def _drop(self, place: Place) -> None:
        """Drop the trigger."""
        _run(place, guard.dropping(JobTable(model=place.model)))

    def describe(self) -> str:
        """Return what ``manage.py migrate --plan`` prints."""
        return f"Guard the leases of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name."""
        return f"{self.model_name.lower()}_guard"


def _run(place: Place, statement: str) -> None:
    LiveTable(place.schema_editor, place.model, lambda _: []).run(statement)
