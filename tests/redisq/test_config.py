"""The configuration: a file, the environment before it, and every fault at once."""

from pathlib import Path
from typing import Any

import pytest

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq.config import Config, environment_name, is_section
from jobreaper.redisq.loading import from_document, load


def faults(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        from_document(document)
    return str(caught.value).splitlines()


def paths(section: Any = Config, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, field in section.model_fields.items():
        below = (*above, name)
        inner = field.annotation
        found += paths(inner, below) if is_section(inner) else [below]
    return found


def test_without_a_file_the_defaults_count(tmp_path: Path) -> None:
    assert load(tmp_path / "none.yaml") == load() == from_document({})
    assert from_document({}).worker.heartbeat_ttl == 30


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load(tmp_path / "empty.yaml") == from_document({})


def test_a_file_is_read_and_the_environment_comes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "redisq.yaml"
    file.write_text(
        "worker:\n  count: 4\n  heartbeat_ttl: 1m30s\n  backoff: {base: 200ms, max: 5s}\n"
        "producer:\n  high_priority_exts: [PDF, .Zip]\n"
    )
    monkeypatch.setenv("WORKER_COUNT", "7")
    monkeypatch.setenv("WORKER_BACKOFF_BASE", "300ms")
    monkeypatch.setenv("REDIS_ADDR", "/run/redis.sock")
    monkeypatch.setenv("CIRCUIT_BREAKER_MIN_SAMPLES", "9")
    monkeypatch.setenv("OBSERVABILITY_TRACING_ENABLED", "true")
    monkeypatch.setenv("WORKER_PRIORITIES", "")
    config = load(file)
    assert config.worker.count == 7
    assert config.worker.heartbeat_ttl == 90
    assert (config.worker.backoff.base, config.worker.backoff.max) == (0.3, 5)
    assert config.producer.high_priority_exts == (".pdf", ".zip")
    assert config.redis.addr == "/run/redis.sock"
    assert config.circuit_breaker.min_samples == 9
    assert config.observability.tracing.enabled
    assert config.worker.priorities == ("high", "low")


@pytest.mark.parametrize(
    ("priorities", "queues"),
    [("a, b", "a=q:1, b=q:2"), ('["a", "b"]', '{"a": "q:1", "b": "q:2"}')],
)
def test_lists_and_mappings_fit_into_the_environment(
    monkeypatch: pytest.MonkeyPatch, priorities: str, queues: str
) -> None:
    monkeypatch.setenv("WORKER_PRIORITIES", priorities)
    monkeypatch.setenv("WORKER_QUEUES", queues)
    monkeypatch.setenv("PRODUCER_DEFAULT_PRIORITY", "b")
    config = load()
    assert config.worker.priorities == ("a", "b")
    assert config.worker.queues == {"a": "q:1", "b": "q:2"}


def test_each_key_has_its_own_name_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [environment_name(path) for path in paths()]
    assert len(names) == len(set(names))
    for name in names:
        monkeypatch.setenv(name, "{")
    reported = faults({})
    # Any text is a user, a password, a handler, a directory or a name of a key.
    free = {"REDIS_USERNAME", "REDIS_PASSWORD", "WORKER_HANDLER", "PRODUCER_SCAN_DIR"}
    free |= {"WORKER_COMPLETED_LIST", "WORKER_DEAD_LETTER_LIST", "PRODUCER_RATE_LIMIT_KEY"}
    free |= {"PRODUCER_INCLUDE_GLOBS", "PRODUCER_EXCLUDE_GLOBS", "PRODUCER_HIGH_PRIORITY_EXTS"}
    free |= {"WORKER_PRIORITIES", "PRODUCER_DEFAULT_PRIORITY"}
    for name in set(names) - free:
        assert any(f"({name})" in line for line in reported), name


def test_all_faults_are_reported_at_once_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_DB", "x")
    assert faults(
        {
            "worker": {"count": 0, "heartbeat_ttl": "4s", "backoff": {"bas": "1s"}},
            "observability": "loud",
            "producer": {"default_priority": "mid", "rate_limit_per_sec": -1},
            "circuit_braker": {},
        }
    ) == [
        "circuit_braker (CIRCUIT_BRAKER) is not a key. Did you mean circuit_breaker?",
        "observability (OBSERVABILITY) must be a section with keys of its own",
        "producer.default_priority (PRODUCER_DEFAULT_PRIORITY) must be a priority with a queue in "
        "worker.queues",
        "producer.rate_limit_per_sec (PRODUCER_RATE_LIMIT_PER_SEC) must be 0 or more",
        "redis.db (REDIS_DB) must be a whole number",
        "worker.backoff.bas (WORKER_BACKOFF_BAS) is not a key. Did you mean base?",
        "worker.count (WORKER_COUNT) must be 1 or more",
        "worker.heartbeat_ttl (WORKER_HEARTBEAT_TTL) must be 5s or more",
    ]


@pytest.mark.parametrize(
    ("section", "values", "fault"),
    [
        ("worker", {"priorities": []}, "must name at least one priority"),
        ("worker", {"priorities": ["low", "low"]}, "must name each priority once"),
        ("worker", {"priorities": ["low", "mid"]}, "no queue for the priority mid"),
        ("worker", {"brpoplpush_timeout": "16s"}, "at most half of worker.heartbeat_ttl"),
        ("worker", {"brpoplpush_timeout": "0s"}, "must be more than 0"),
        ("worker", {"backoff": {"base": "11s"}}, "shorter than worker.backoff.base"),
        ("worker", {"queues": {"high": "a", "low": "a"}}, "names the list 'a' twice"),
        ("worker", {"completed_list": "jobqueue:low_priority"}, "as worker.queues is already"),
        ("worker", {"dead_letter_list": "jobqueue:completed"}, "worker.completed_list is already"),
        ("worker", {"processing_list_pattern": "a"}, "must contain %s once"),
        ("worker", {"processing_list_pattern": "a%s%d"}, "must contain %s once"),
        ("worker", {"processing_list_pattern": "%s"}, "every key would match"),
        ("worker", {"processing_list_pattern": "jobqueue:%s"}, "matches the list"),
        ("worker", {"heartbeat_key_pattern": "jobqueue:worker:%s:processing"}, "must differ from"),
        ("worker", {"heartbeat_ttl": 30}, "with a unit, such as 200ms"),
        ("worker", {"count": 1.5}, "must be a whole number"),
        ("redis", {"addr": "localhost"}, "must be host:port"),
        ("redis", {"addr": "http://localhost:1"}, "must be host:port"),
        ("redis", {"addr": "localhost:99999"}, "must be host:port"),
        ("observability", {"log_level": "loud"}, "must be 'debug', 'info'"),
        ("observability", {"metrics_port": 70000}, "must be 65535 or less"),
        ("observability", {"tracing": {"endpoint": "collector"}}, "http://"),
        ("circuit_breaker", {"failure_threshold": 1.5}, "must be 1 or less"),
        ("circuit_breaker", {"failure_threshold": "inf"}, "and not infinite"),
        ("producer", {"include_globs": [""]}, "must not be empty"),
    ],
)
def test_a_rule_that_is_broken_is_named(section: str, values: dict[str, Any], fault: str) -> None:
    reported = faults({section: values})
    assert len(reported) == 1
    assert fault in reported[0]


def test_a_password_is_never_printed(tmp_path: Path) -> None:
    secret = "hunter2"
    config = from_document({"redis": {"password": secret}})
    for text in (repr(config), str(config), config.model_dump_json(), repr(config.redis)):
        assert secret not in text
    assert config.redis.password is not None
    assert config.redis.password.get_secret_value() == secret
    for document in (
        {"redis": {"password": [secret]}},
        {"redis": {"pasword": secret}},
        {"redis": f"redis://:{secret}@localhost:6379"},
        {"redis": {"addr": f"redis://:{secret}@localhost:6379"}},
        {"observability": {"tracing": {"endpoint": f"http://u:{secret}@collector"}}},
        {secret: 1},
    ):
        if secret not in document:
            assert secret not in "\n".join(faults(document))
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"redis:\n  password: [{secret}\n")
    with pytest.raises(ConfigurationError, match=r"broken.yaml, line \d+ is not YAML") as caught:
        load(broken)
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"- a\n", "must be a mapping"),
        (b"text", "must be a mapping"),
        (b"1: 2\n", "must be a mapping"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: [" * 5000, "not YAML"),
        (b"!!python/object:os.system {}", "not YAML"),
        (b"#" * 1_100_000, "larger than"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=why):
        load(tmp_path / "bad.yaml")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path)
