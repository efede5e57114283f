"""Two enqueue the same job, or one enqueues while the holder of the key comes to its end."""

import threading
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import pytest
from django.db import connections, transaction

from jobreaper import claim, enqueue, enqueue_many, reap, requeue
from jobreaper.models import Job
from tests.races.rivals import Rivals
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_two_enqueues_at_once_make_one_job_and_both_get_it(rivals: Rivals, jobs: Rows) -> None:
    with transaction.atomic():
        first = enqueue("mail", dedupe="skip")
        second = rivals.start_and_see_it_wait(lambda: enqueue("mail", dedupe="skip"))
    assert second.result().pk == first.pk
    assert list(jobs.all()) == [first.pk]


def test_an_enqueue_whose_rival_rolls_back_makes_the_job(rivals: Rivals, jobs: Rows) -> None:
    with transaction.atomic():
        first = enqueue("mail", dedupe="skip")
        second = rivals.start_and_see_it_wait(lambda: enqueue("mail", dedupe="skip"))
        transaction.set_rollback(True)
    job = second.result()
    assert job.pk != first.pk
    assert list(jobs.all()) == [job.pk]


@pytest.mark.parametrize("is_made", [True, False])
def test_a_requeue_that_comes_while_a_key_is_taken_passes_over_that_job(
    is_made: bool, rivals: Rivals, jobs: Rows
) -> None:
    failed = [enqueue("mail", dedupe="skip", dedupe_key=key).pk for key in "abc"]
    Job.objects.update(status="failed")
    with transaction.atomic():
        enqueue("mail", dedupe="skip", dedupe_key="b")
        requeued = rivals.start_and_see_it_wait(lambda: requeue(Job, failed, by="ann"))
        transaction.set_rollback(not is_made)
    a, b, c = failed
    assert sorted(requeued.result()) == ([a, c] if is_made else [a, b, c])


@pytest.mark.parametrize("dedupe", ["skip", "replace"])
def test_an_enqueue_that_comes_while_the_key_is_given_back_makes_a_job(
    dedupe: str, rivals: Rivals, jobs: Rows
) -> None:
    first = enqueue("mail", dedupe=dedupe)
    lease = claim(Job, first.pk)
    assert lease is not None
    with transaction.atomic():
        lease.finish()
        second = rivals.start_and_see_it_wait(lambda: enqueue("mail", dedupe=dedupe))
    job = second.result()
    assert (job.status, jobs.row(first.pk)["status"]) == ("queued", "success")
    assert job.pk != first.pk


def test_an_enqueue_that_comes_while_the_end_is_taken_back_keeps_the_job(rivals: Rivals) -> None:
    first = enqueue("mail", dedupe="skip")
    lease = claim(Job, first.pk)
    assert lease is not None
    with transaction.atomic():
        lease.finish()
        second = rivals.start_and_see_it_wait(lambda: enqueue("mail", dedupe="skip"))
        transaction.set_rollback(True)
    assert second.result().pk == first.pk


def test_an_enqueue_that_comes_while_the_reaper_fails_the_holder_makes_a_job(
    rivals: Rivals,
) -> None:
    first = enqueue("mail", dedupe="skip", max_attempts=1)
    claim(Job, first.pk)
    Job.objects.filter(pk=first.pk).update(lease_expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    with transaction.atomic():
        assert reap([Job]).failed_ids["jobreaper_jobs"] == [first.pk]
        second = rivals.start_and_see_it_wait(lambda: enqueue("mail", dedupe="skip"))
    assert second.result().pk != first.pk


def test_a_job_claimed_while_it_is_replaced_runs_with_one_payload_or_the_other(
    rivals: Rivals, jobs: Rows
) -> None:
    job = enqueue("mail", {"n": 1}, dedupe="replace", dedupe_key="k")
    with transaction.atomic():
        lease = claim(Job, job.pk)
        replacing = rivals.start_and_see_it_wait(
            lambda: enqueue("mail", {"n": 2}, dedupe="replace", dedupe_key="k")
        )
    assert lease is not None
    assert lease.job.payload == {"n": 1}
    found = replacing.result()
    assert (found.pk, found.status, found.payload) == (job.pk, "processing", {"n": 1})
    assert jobs.row(job.pk)["payload"] == {"n": 1}


def test_batches_of_the_same_jobs_in_different_orders_do_not_lock_each_other_out(
    rivals: Rivals, jobs: Rows
) -> None:
    numbers = range(1000)

    begin = threading.Barrier(2)

    def make(order: list[int]) -> int:
        made = 0
        for turn in range(5):
            rows = [{"payload": {"n": n, "turn": turn}} for n in order]
            begin.wait(20)
            # In a transaction of the caller's a deadlock is not tried again.
            with transaction.atomic():
                made += enqueue_many(rows, type="mail", dedupe="skip").made
        return made

    there, back = list(numbers), list(reversed(numbers))
    makers = [rivals.start(partial(make, order)) for order in (there, back)]
    assert sum(maker.result() for maker in makers) == 5 * len(numbers)
    assert len(jobs.all()) == 5 * len(numbers)


def test_one_job_a_key_however_many_enqueue_claim_and_finish_it(jobs: Rows) -> None:
    """Each key has at most one live job at any time, and nobody sees an exception."""
    problems: list[BaseException] = []
    made: Counter[str] = Counter()
    begin = threading.Barrier(6)

    def enqueue_often() -> None:
        for n in range(40):
            made[str(enqueue("mail", {"n": n % 3}, dedupe=("skip", "replace")[n % 2]).pk)] += 1

    def finish_often() -> None:
        for _ in range(40):
            for pk in jobs_queued():
                lease = claim(Job, pk)
                if lease is not None:
                    lease.finish()

    def jobs_queued() -> list[object]:
        return list(Job.objects.filter(status="queued").values_list("pk", flat=True))

    def run(what: object) -> None:
        try:
            begin.wait(20)
            what()  # type: ignore[operator]
        except BaseException as error:
            problems.append(error)
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=run, args=[what])
        for what in (*[enqueue_often] * 4, *[finish_often] * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    rows = jobs.all()
    assert set(made) == {str(pk) for pk in rows}
    live = Counter(row["dedupe_key"] for row in rows.values() if row["status"] == "queued")
    assert set(live.values()) <= {1}
