"""``LeasedJob``: the abstract model that gives a table its lease columns, and its queryset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, ClassVar, Final, TypeVar, cast

from django.db import DatabaseError, models, router
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Cast, Coalesce, Now
from django.db.models.signals import class_prepared
from django.utils.translation import gettext_lazy as _

from jobreaper import conf, sql
from jobreaper.progress import progress_fields
from jobreaper.states import LeaseState, Status

J = TypeVar("J", bound="LeasedJob")

# A worker that has missed this many heartbeats in a row is late: a slow database can cost one, a
# restart two.
LATE_AFTER_BEATS: Final = 3


def default_max_attempts() -> int:
    """Return ``JOB_MAX_ATTEMPTS``, for rows created through Django."""
    return conf.settings().max_attempts


def own_field_names(model: type[models.Model]) -> list[str]:
    """Return the fields that ``save()`` may write: those that do not belong to the protocol."""
    kept = protocol_fields(model)
    return [
        field.name
        for field in model._meta.concrete_fields
        if not (field.name in kept or field.primary_key or field.generated)
    ]


@cache
def protocol_fields(model: type[models.Model]) -> frozenset[str]:
    """Return the fields that only the protocol writes."""
    return PROTOCOL_FIELDS | progress_fields(model._meta.concrete_fields)


class Digest(Func):
    """SHA-256 of a text, which an index contains instead of a key of any length."""

    # convert_to() would be clearer, but PostgreSQL does not allow it in an index.
    template = sql.source("frozen/digest").strip().format(text="%(expressions)s")
    output_field = models.BinaryField()


class LeaseIndex(models.Index):
    """An index whose name may be as long as PostgreSQL allows, because it contains the table's
    name.
    """

    max_name_length = 63

    @classmethod
    def named(cls, table: str, suffix: str, *expressions: Any, **options: Any) -> LeaseIndex:
        """Return an index ``idx_<table>_<suffix>``. A name that is too long is shortened with a
        hash. So is a name with percent signs, which Django would interpret as a placeholder.
        """
        bare = table.replace('"', "").replace(".", "_")
        name = f"idx_{bare}_{suffix}"
        if len(name.encode()) > cls.max_name_length or "%" in name:
            digest = hashlib.sha256(bare.encode()).hexdigest()[:8]
            room = cls.max_name_length - len(f"idx__{digest}_{suffix}")
            kept = bare.replace("%", "").encode()[:room].decode(errors="ignore")
            name = f"idx_{kept}_{digest}_{suffix}"
        return cls(*expressions, name=name, **options)


class LeasedJobQuerySet(models.QuerySet[J]):
    """Querysets in the words of the protocol. Every comparison uses the database's clock."""

    def due(self) -> LeasedJobQuerySet[J]:
        """Return queued jobs that may be claimed now."""
        return self.filter(
            Q(next_earliest_run_at=None) | Q(next_earliest_run_at__lte=Now()), status=Status.QUEUED
        )

    def scheduled(self) -> LeasedJobQuerySet[J]:
        """Return queued jobs that are not due yet."""
        return self.filter(status=Status.QUEUED, next_earliest_run_at__gt=Now())

    def retryable(self) -> LeasedJobQuerySet[J]:
        """Return jobs that may be tried again, as ``policies.can_retry`` says."""
        done = [Status.SUCCESS, Status.PROCESSING]
        return self.exclude(status__in=done).filter(attempt_count__lt=F("max_attempts"))

    def running(self) -> LeasedJobQuerySet[J]:
        """Return jobs that a worker is running, or was running when it died."""
        return self.filter(status=Status.PROCESSING)

    def in_lease_state(self, state: LeaseState) -> LeasedJobQuerySet[J]:
        """Return running jobs whose lease is in this state."""
        return self.running().filter(_lease_condition(state))

    def enqueue(self, **fields: Any) -> J:
        """Create a job. If there is a ``LeasedTask`` for it, it is sent to Celery when the
        transaction commits.
        """
        return self.create(**fields)

    def update_or_create(
        self,
        defaults: Mapping[str, Any] | None = None,
        create_defaults: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[J, bool]:
        """Update or create a job as Django does. ``defaults`` sets the protocol's fields only for a
        new job; an existing one keeps its own, as in ``save()``.
        """
        defaults = defaults or {}
        own = {
            name: value
            for name, value in defaults.items()
            if name not in protocol_fields(self.model)
        }
        if create_defaults is None:
            create_defaults = defaults
        return super().update_or_create(own, create_defaults, **kwargs)

    def stuck(self) -> LeasedJobQuerySet[J]:
        """Return running jobs without a valid lease: it has run out, or they have none."""
        return self.running().filter(
            _lease_condition(LeaseState.EXPIRED) | _lease_condition(LeaseState.NONE)
        )

    def with_lease_state(self) -> LeasedJobQuerySet[Any]:
        """Annotate ``lease_state``, a ``LeaseState``, which is empty for a job that is not
        running.
        """
        return self.annotate(
            lease_state=Case(
                When(~Q(status=Status.PROCESSING), then=Value("")),
                *(When(_lease_condition(state), then=Value(state)) for state in LeaseState),
                default=Value(LeaseState.NONE),
                output_field=models.TextField(),
            )
        )


def _lease_condition(state: LeaseState) -> Q:
    late_before = Now() - timedelta(seconds=LATE_AFTER_BEATS * conf.settings().heartbeat_sec)
    alive = Q(lease_expires_at__gte=Now())
    is_late = Q(last_heartbeat_at__lt=late_before) | Q(last_heartbeat_at=None)
    return {
        LeaseState.NONE: Q(lease_expires_at=None),
        LeaseState.EXPIRED: Q(lease_expires_at__lt=Now()),
        LeaseState.LATE: alive & is_late,
        LeaseState.LIVE: alive & Q(last_heartbeat_at__gte=late_before),
    }[state]


def _text(help_text: Any, **options: Any) -> models.TextField[str | None, str | None]:
    return models.TextField(null=True, blank=True, help_text=help_text, **options)


def _time(help_text: Any) -> models.DateTimeField[datetime | str | None, datetime | None]:
    return models.DateTimeField(null=True, blank=True, editable=False, help_text=help_text)


def _count(help_text: Any) -> models.IntegerField[int, int]:
    return models.IntegerField(default=0, db_default=0, editable=False, help_text=help_text)


class LeasedJob(models.Model):
    """A job that can be claimed, renewed, finished and reaped.

    Subclass it and add your own fields. ``EXTRA_FIELDS`` lists names of fields that the package
    uses. Every column is nullable or has a database default, so INSERT statements from before the
    columns existed keep working.
    """

    status = models.TextField(
        default=Status.QUEUED.value,
        db_default=Status.QUEUED.value,
        choices=[(status.value, status.value) for status in Status],
        editable=False,
        help_text=_("Where the job is in its life."),
    )
    stage = _text(_("The kind of work; picks the policy."))
    locked_by = _text(_("The worker that holds the lease."), editable=False)
    claimed_at = _time(_("When this attempt started."))
    lease_expires_at = _time(_("When the lease ends unless a heartbeat renews it."))
    last_heartbeat_at = _time(_("The last sign of life; kept after the end, as evidence."))
    lease_epoch = models.BigIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text=_("The fencing token: goes up at every claim, reap and cancel, never down."),
    )
    attempt_count = _count(_("Attempts started so far."))
    max_attempts = models.IntegerField(
        default=default_max_attempts,
        db_default=conf.DEFAULT_MAX_ATTEMPTS,
        help_text=_("Attempts allowed; the job fails when they are used up."),
    )
    reap_count = _count(_("Attempts that lost their worker."))
    next_earliest_run_at = _time(_("Not before this time: backoff or a schedule."))
    expected_duration_ms = models.IntegerField(
        null=True, blank=True, help_text=_("Expected length of the work; lengthens the lease.")
    )
    deadline_at = _time(
        _("Hard end of this attempt, set at claim where the stage has a max_runtime.")
    )
    finished_at = _time(_("When the job reached its end."))
    dispatched_at = _time(_("When its last message was sent."))
    fail_code = _text(_("Why the last attempt ended badly."), editable=False)
    fail_reason = _text(_("The same in words."), editable=False)

    objects: ClassVar[models.Manager[Any]] = LeasedJobQuerySet.as_manager()

    # On a job that came from a claim: the Fence of its lease, for save().
    _lease: Any = None
    # During a save(): whether the caller has named the fields to write.
    _fields_are_named = False

    class Meta:
        abstract = True
        indexes: ClassVar[list[models.Index]] = []

    def __getstate__(self) -> dict[str, Any]:
        # A lease belongs to the process that claimed it and is not pickled with its job.
        return {key: value for key, value in super().__getstate__().items() if key != "_lease"}

    # Python makes copies as it unpickles, and a copy in this process is of the same lease.

    def __copy__(self) -> Any:
        make, arguments, state = cast("Any", self).__reduce__()
        return self._with_lease(make(*arguments), state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make, arguments, state = cast("Any", self).__reduce__()
        made = memo[id(self)] = make(*arguments)
        return self._with_lease(made, deepcopy(state, memo))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as Django does, but do not write the protocol's columns of an existing row, unless
        ``update_fields`` names them: the job may have been claimed, finished or cancelled since the
        instance was read.

        A job that came from a claim is saved under its lease: a worker that has lost the job writes
        nothing. A copy of a running job (its key is ``None``) is a new, queued job.

        Raises:
            LeaseLost: the job was claimed by this worker and has been taken away since.
        """
        named_before = self._fields_are_named
        self._fields_are_named = _argument(3, "update_fields", args, kwargs) is not None
        try:
            self._save_fenced(args, kwargs)
        finally:
            self._fields_are_named = named_before

    def _with_lease(self, made: Any, state: dict[str, Any]) -> Any:
        made.__setstate__(state)
        if self._lease is not None:
            made._lease = self._lease
        return made

    def _save_fenced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        save = partial(super().save, *args, **kwargs)
        using = _argument(2, "using", args, kwargs)
        using = using or router.db_for_write(type(self), instance=self)
        if self.pk is None and not self._state.adding:
            self._forget_run()
        if self._lease is None or self._state.adding or using != self._lease.alias:
            save()
        else:
            self._lease.save_job(using, save)

    def _forget_run(self) -> None:
        """Make this instance, which is saved as a copy, one that no worker is running."""
        self._lease = None
        if self.status == Status.PROCESSING:
            for field in self._meta.concrete_fields:
                if field.name in protocol_fields(type(self)):
                    setattr(self, field.attname, field.get_default())

    def _do_update(
        self, base_qs: Any, using: str | None, pk_val: Any, values: Any, *args: Any
    ) -> Any:
        # Every UPDATE of an instance goes through this method: in save(), in a fixture, in a
        # parent's table. Django 6 passes one more argument than 5.2.
        if not self._fields_are_named:
            kept = protocol_fields(type(self))
            values = [value for value in values if value[0].name not in kept]
        updated = super()._do_update(base_qs, using, pk_val, values, *args)
        # Django would insert the row again. A job that has ended and been deleted since would run
        # once more.
        was_there = not self._state.adding and using == self._state.db
        if was_there and not updated and base_qs.model is self._meta.get_field("status").model:
            raise DatabaseError(
                f"{self._meta.label} {pk_val} has been deleted since it was read; "
                "save(force_insert=True) creates it again"
            )
        return updated


def _argument(place: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument of ``Model.save()``, which Django 5.2 also accepts by position."""
    return args[place] if len(args) > place else kwargs.get(name)


# Every column that the statements know, by the name of its field.
PROTOCOL_COLUMNS: Final = tuple(field.name for field in LeasedJob._meta.local_fields)


def lease_indexes(
    table: str, key: Sequence[str] = ("id",), *, has_priority: bool = False
) -> list[models.Index]:
    """Return the partial indexes that a job table needs: two, and a third if it has priorities.
    They contain only unfinished jobs, so they stay small however many finished rows the table has.
    """
    by_priority = LeaseIndex.named(
        table,
        "queued_priority",
        fields=["-priority", "next_earliest_run_at", *key],
        condition=Q(status=Status.QUEUED.value),
    )
    return [
        LeaseIndex.named(
            table,
            "status_lease",
            fields=["status", "lease_expires_at"],
            condition=Q(status=Status.PROCESSING.value),
        ),
        LeaseIndex.named(
            table,
            "queued_due",
            fields=["next_earliest_run_at", *key],
            condition=Q(status=Status.QUEUED.value),
        ),
        *([by_priority] if has_priority else []),
    ]


def index_by_kind(
    table: str, kind: Sequence[str] = (), key: Sequence[str] = ("id",)
) -> models.Index:
    """Return the index that lets a claim pass over a long line of jobs that are not for it: paused
    ones, and those of other stages and types. Add it to ``Meta.indexes``.

    Args:
        table: ``db_table``.
        kind: which of the fields ``type``, ``queue`` and ``priority`` the model has. The last one
            must not be nullable.
        key: the primary key.
    """
    texts = [Coalesce(name, Value("")) for name in ("type", "queue") if name in kind]
    return LeaseIndex.named(
        table,
        "queued_kind",
        Coalesce("stage", Value("")),
        *texts,
        *(F(name) for name in ("priority",) if name in kind),
        # Jobs without a time come last. An expression, so that no other index has this order.
        Coalesce("next_earliest_run_at", Cast(Value("infinity"), models.DateTimeField())),
        *map(F, key),
        condition=Q(status=Status.QUEUED.value),
    )


def _add_lease_indexes(sender: type[models.Model], **kwargs: object) -> None:
    """Add the indexes to each concrete subclass, whatever indexes its ``Meta`` declares.

    ``makemigrations`` reads ``original_attrs`` to find what a model declares.
    """
    options = sender._meta
    if not issubclass(sender, LeasedJob) or options.abstract or options.proxy:
        return
    fields = {field.name for field in options.local_fields}
    if not {"status", "lease_expires_at"} <= fields:
        return  # multi-table child: its parent has the columns
    key = [own.name for own in options.pk_fields]
    options.indexes = [
        *options.indexes,
        *lease_indexes(options.db_table, key, has_priority="priority" in fields),
    ]
    options.original_attrs["indexes"] = options.indexes


class_prepared.connect(_add_lease_indexes)

# Only claims, heartbeats, endings and reaps write these.
PROTOCOL_FIELDS: Final = frozenset(
    field.name for field in LeasedJob._meta.local_fields if not field.editable
)
