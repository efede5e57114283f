"""Names in Redis, from patterns that people chose."""

import pytest

from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document


def keys_of(**worker: object) -> Keys:
    return Keys.of(from_document({"worker": worker}))


def test_the_defaults_are_the_documented_names() -> None:
    keys = keys_of()
    assert dict(keys.queues) == {"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"}
    assert keys.processing("w1") == "jobqueue:worker:w1:processing"
    assert keys.heartbeat("w1") == "jobqueue:processing:worker:w1"
    assert keys.delayed("jobqueue:low_priority") == "jobqueue:low_priority:delayed"
    assert keys.named("seen") == "jobqueue:seen"
    assert keys_of(completed_list="done").named("seen") == "seen"


def test_queues_are_in_the_order_in_which_workers_look() -> None:
    keys = keys_of(priorities=["b", "a"], queues={"a": "1", "b": "2", "low": "3"})
    assert list(keys.queues.items()) == [("b", "2"), ("a", "1"), ("low", "3")]


@pytest.mark.parametrize("worker_id", ["host-1-ab-0", "a:b:c", "x"])
def test_a_worker_is_known_by_its_keys(worker_id: str) -> None:
    keys = keys_of()
    assert keys.worker_of(keys.processing(worker_id)) == worker_id
    assert keys.worker_of(keys.heartbeat(worker_id)) == worker_id


def test_other_keys_belong_to_no_worker() -> None:
    keys = keys_of()
    for name in (*keys.queues.values(), "jobqueue:worker::processing", "jobqueue:worker:", ""):
        assert keys.worker_of(name) is None


def test_signs_that_scan_would_take_for_more_are_escaped() -> None:
    keys = keys_of(processing_list_pattern="a*[b]?\\%s:c")
    assert keys.processing_glob == "a\\*\\[b\\]\\?\\\\*:c"


@pytest.mark.parametrize(
    ("origin", "priority", "queue"),
    [
        ("jobqueue:high_priority", "low", "jobqueue:high_priority"),
        ("", "high", "jobqueue:high_priority"),
        ("jobqueue:dead_letter", "high", "jobqueue:high_priority"),
        ("somebody:elses:key", "", "jobqueue:low_priority"),
        ("", "unknown", "jobqueue:low_priority"),
    ],
)
def test_a_job_only_ever_goes_to_a_queue(origin: str, priority: str, queue: str) -> None:
    job = Job(id="1", filepath="/a", origin_queue=origin, priority=priority)
    assert keys_of().queue_of(job) == queue
