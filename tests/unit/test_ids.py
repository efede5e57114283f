"""Keys of new jobs grow, whatever the clock does."""

from uuid import RFC_4122, UUID, SafeUUID

import pytest

from jobreaper import ids


@pytest.mark.parametrize("step_ns", [0, -1_000_000, 100, 1_000_000_000])
def test_keys_grow_though_the_clock_stands_still_or_goes_back(
    step_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 1_800_000_000_000_000_000

    def tick() -> int:
        nonlocal now_ns
        now_ns += step_ns
        return now_ns

    monkeypatch.setattr("jobreaper.ids.time.time_ns", tick)
    monkeypatch.setattr("jobreaper.ids._last", 0)
    made = [ids.new_id() for _ in range(5000)]
    made += [*ids.new_ids(5000), ids.new_id(), *ids.new_ids(0), *ids.new_ids(2)]
    assert len(made) == 10_003
    assert made == sorted(set(made))
    assert {(key.version, key.variant, key.is_safe) for key in made} == {
        (7, RFC_4122, SafeUUID.unknown)
    }
    assert {UUID(str(key)) for key in made} == set(made)
