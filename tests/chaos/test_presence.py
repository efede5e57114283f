"""Only a worker that is dead loses its job, and each that is does, whatever happens to the network.

`CHAOS_SEED` chooses what happens, in which order; `CHAOS_ROUNDS`, `CHAOS_CUTS` and `CHAOS_RESETS`
how often: hundreds of rounds, and 1,000 cuts and 20 resets, take minutes.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.embedded import Postgres
from tests.chaos.presence import GRACE_SEC, House
from tests.printing import print_table

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(7200),
]

SEED = int(os.environ.get("CHAOS_SEED") or 12)
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
CUTS = int(os.environ.get("CHAOS_CUTS", "20"))
RESETS = int(os.environ.get("CHAOS_RESETS", "2"))
WORKERS = 4


@pytest.fixture
def house(server: Postgres, tmp_path: Path) -> Iterator[House]:
    random.seed(SEED)
    house = House(server, tmp_path)
    with house.at_work(WORKERS):
        yield house


def test_only_the_dead_lose_their_jobs(house: House) -> None:
    began = time.monotonic()
    names = list(house.harms)
    random.shuffle(names)
    # Each once before any twice.
    rounds = [*names, *random.choices(names, k=max(0, ROUNDS - len(names)))][:ROUNDS]
    for name in rounds:
        print(f"\n{name}", end="", flush=True)
        house.harms[name]()
        house.stand(random.uniform(0, 1.5) * GRACE_SEC)
        house.all_hold()
    print_table(
        f"{ROUNDS} rounds, CHAOS_SEED={SEED}, {time.monotonic() - began:.0f} s",
        [("", "times"), *Counter(rounds).most_common(), ("workers killed", house.killed)],
    )


def test_connections_that_are_cut_and_reset_cost_no_lease(house: House) -> None:
    cut = reset = 0
    while cut < CUTS or reset < RESETS:
        if reset < RESETS and cut * RESETS >= reset * CUTS:
            house.reset()
            reset += 1
        cut += house.cut(None, random.randint(1, WORKERS))
        house.stand(random.uniform(0, 0.3))
    house.stand(2 * GRACE_SEC)
    house.all_hold()
    print_table("no lease lost", [("cut", "all reset"), (cut, reset)])
