"""``LeasedJob``: the abstract model that gives a table its lease columns, and its queryset."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from django.db import models, router
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now
from django.db.models.signals import class_prepared
from django.utils.translation import gettext_lazy as _

from jobreaper import conf
from jobreaper.states import LeaseState, Status

J = TypeVar("J", bound="LeasedJob")

# A worker that missed this many beats in a row is late: one can be lost to a slow database, two to
# a restart, three deserve a look.
LATE_AFTER_BEATS: Final = 3


# Written by claims, heartbeats, endings and reaps, and by nothing else.
PROTOCOL_FIELDS: Final = frozenset(
    {
        "status",
        "locked_by",
        "claimed_at",
        "lease_expires_at",
        "last_heartbeat_at",
        "lease_epoch",
        "attempt_count",
        "reap_count",
        "next_earliest_run_at",
        "deadline_at",
        "finished_at",
        "dispatched_at",
        "fail_code",
        "fail_reason",
    }
)


def default_max_attempts() -> int:
    """Return ``JOB_MAX_ATTEMPTS``, for rows made through Django."""
    return conf.settings().max_attempts


def own_field_names(model: type[models.Model]) -> list[str]:
    """Return the fields that a save of a job may write: those that are not the protocol's."""
    return [
        field.name
        for field in model._meta.concrete_fields
        if field.name not in PROTOCOL_FIELDS and not field.primary_key and not field.generated
    ]


class LeaseIndex(models.Index):
    """An index whose name may be as long as PostgreSQL allows: it holds the table's name."""

    max_name_length = 63

    @classmethod
    def named(cls, table: str, suffix: str, **options: Any) -> LeaseIndex:
        """Return an index ``idx_<table>_<suffix>``. Where that is too long it is shortened with a
        hash; so it is without the percent signs, which Django would take for a place to fill in.
        """
        bare = table.replace('"', "").replace(".", "_")
        name = f"idx_{bare}_{suffix}"
        if len(name.encode()) > cls.max_name_length or "%" in name:
            digest = hashlib.sha256(bare.encode()).hexdigest()[:8]
            room = cls.max_name_length - len(f"idx__{digest}_{suffix}")
            kept = bare.replace("%", "").encode()[:room].decode(errors="ignore")
            name = f"idx_{kept}_{digest}_{suffix}"
        return cls(name=name, **options)


class LeasedJobQuerySet(models.QuerySet[J]):
    """Scopes in the project's own words. Every comparison uses the database's clock."""

    def due(self) -> LeasedJobQuerySet[J]:
        """Return queued jobs that may be claimed now."""
        return self.filter(
            Q(next_earliest_run_at=None) | Q(next_earliest_run_at__lte=Now()), status=Status.QUEUED
        )

    def scheduled(self) -> LeasedJobQuerySet[J]:
        """Return queued jobs whose time has not come."""
        return self.filter(status=Status.QUEUED, next_earliest_run_at__gt=Now())

    def retryable(self) -> LeasedJobQuerySet[J]:
        """Return jobs that may be tried again, as ``policies.can_retry`` says."""
        done = [Status.SUCCESS, Status.PROCESSING]
        return self.exclude(status__in=done).filter(attempt_count__lt=F("max_attempts"))

    def running(self) -> LeasedJobQuerySet[J]:
        """Return jobs that some worker has, or had, in hand."""
        return self.filter(status=Status.PROCESSING)

    def in_lease_state(self, state: LeaseState) -> LeasedJobQuerySet[J]:
        """Return running jobs whose lease is in ``state``."""
        return self.running().filter(_lease_condition(state))

    def enqueue(self, **fields: Any) -> J:
        """Create a job. With a ``LeasedTask`` for it, it is sent to Celery when the transaction
        commits.
        """
        return self.create(**fields)

    def stuck(self) -> LeasedJobQuerySet[J]:
        """Return running jobs that nobody answers for: their lease ran out, or they have none."""
        return self.running().filter(
            _lease_condition(LeaseState.EXPIRED) | _lease_condition(LeaseState.NONE)
        )

    def with_lease_state(self) -> LeasedJobQuerySet[Any]:
        """Annotate ``lease_state``: a ``LeaseState``, empty for a job that is not running."""
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


class LeasedJob(models.Model):
    """A job that can be leased, beaten, finished and reaped.

    Subclass it with your own fields; see ``EXTRA_FIELDS`` for those that are used where they are
    there. Every column is nullable or has a database default, so INSERT statements written before
    the columns existed keep working.
    """

    status = models.TextField(
        default=Status.QUEUED.value,
        db_default=Status.QUEUED.value,
        choices=[(status.value, status.value) for status in Status],
        help_text=_("Where the job is in its life."),
    )
    stage = models.TextField(
        null=True, blank=True, help_text=_("The kind of work; picks the policy.")
    )
    locked_by = models.TextField(
        null=True, blank=True, editable=False, help_text=_("The worker that holds the lease.")
    )
    claimed_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text=_("When this attempt started.")
    )
    lease_expires_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("When the lease ends unless a heartbeat renews it."),
    )
    last_heartbeat_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("The last sign of life; kept after the end, as evidence."),
    )
    lease_epoch = models.BigIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text=_("The fencing token: goes up at every claim, reap and cancel, never down."),
    )
    attempt_count = models.IntegerField(
        default=0, db_default=0, editable=False, help_text=_("Attempts started so far.")
    )
    max_attempts = models.IntegerField(
        default=default_max_attempts,
        db_default=conf.DEFAULT_MAX_ATTEMPTS,
        help_text=_("Attempts allowed; the job fails when they are used up."),
    )
    reap_count = models.IntegerField(
        default=0, db_default=0, editable=False, help_text=_("Attempts that lost their worker.")
    )
    next_earliest_run_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Not before this time: backoff or a schedule.")
    )
    expected_duration_ms = models.IntegerField(
        null=True, blank=True, help_text=_("Expected length of the work; lengthens the lease.")
    )
    deadline_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("Hard end of this attempt, set at claim where the stage has a max_runtime."),
    )
    finished_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text=_("When the job reached its end.")
    )
    dispatched_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text=_("When its last message was sent.")
    )
    fail_code = models.TextField(
        null=True, blank=True, editable=False, help_text=_("Why the last attempt ended badly.")
    )
    fail_reason = models.TextField(
        null=True, blank=True, editable=False, help_text=_("The same in words.")
    )

    objects: ClassVar[models.Manager[Any]] = LeasedJobQuerySet.as_manager()

    # On a job that came out of a claim: the lease that fences save().
    _lease: Any = None

    class Meta:
        abstract = True
        indexes: ClassVar[list[models.Index]] = []

    def __getstate__(self) -> dict[str, Any]:
        # A lease belongs to the process that claimed it and is not pickled with its job.
        return {key: value for key, value in super().__getstate__().items() if key != "_lease"}

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as Django does. A job that came out of a claim is saved under its lease: the
        columns of the protocol are left to the protocol, and a worker that has lost the job writes
        nothing.

        Raises:
            LeaseLost: the job was claimed by this worker and has been taken away since.
        """
        if self._lease is None or self._state.adding:
            super().save(*args, **kwargs)
            return
        if kwargs.get("update_fields") is None:
            deferred = self.get_deferred_fields()
            kwargs["update_fields"] = [
                name for name in own_field_names(type(self)) if name not in deferred
            ]
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        self._lease.save_job(using, lambda: super(LeasedJob, self).save(*args, **kwargs))


# Every column the statements know, by the name of its field.
PROTOCOL_COLUMNS: Final = tuple(field.name for field in LeasedJob._meta.local_fields)


def lease_indexes(
    table: str, key: Sequence[str] = ("id",), *, has_priority: bool = False
) -> list[models.Index]:
    """Return the partial indexes a job table needs: two, and a third where it has priorities. They
    hold unfinished jobs only, so they stay small however many finished rows the table keeps.
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


def _add_lease_indexes(sender: type[models.Model], **kwargs: object) -> None:
    """Give each concrete subclass its indexes, whatever its ``Meta`` says about others.

    ``original_attrs`` is where ``makemigrations`` looks for what a model declares.
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
