"""The protocol as a model that a machine checks: `make model`. It needs Spin and a C compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("protocol.pml")
# Minutes on a busy machine; seconds on an idle one.
TIMEOUT_SEC = 600

SAFE = "finished_stays_finished"
LIVE = "every_job_ends"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_SEC),
    pytest.mark.skipif(
        shutil.which("spin") is None or shutil.which("cc") is None,
        reason="spin or a C compiler is not on this machine",
    ),
]


def check(where: Path, claim: str, *defines: str) -> str:
    """Check a claim, and every assertion with it; return what the checker says."""
    options = [f"-D{define}" for define in defines]
    subprocess.run(["spin", *options, "-a", MODEL], cwd=where, check=True, capture_output=True)
    compiler = ["cc", "-O2", "-w", "-DCOLLAPSE", "-DNFAIR=5", "-o", "pan", "pan.c"]
    subprocess.run(compiler, cwd=where, check=True)
    fairness = ["-f"] if claim == LIVE else []
    run = ["./pan", "-m1000000", "-n", "-a", *fairness, "-N", claim]
    done = subprocess.run(run, cwd=where, check=True, capture_output=True, text=True)
    assert "errors:" in done.stdout, done.stdout
    assert "max search depth too small" not in done.stdout
    return done.stdout


def holds(said: str) -> bool:
    return "errors: 0" in said


@pytest.mark.parametrize("claim", [SAFE, LIVE])
def test_the_protocol_holds_whatever_goes_wrong_twice(tmp_path: Path, claim: str) -> None:
    said = check(tmp_path, claim, "FAULTS=2")
    assert holds(said), said


@pytest.mark.parametrize(
    "mistake",
    [
        "FINISH_BY_KEY",
        "FINISH_WITHOUT_NAME",
        "OLDER_LEASE_KEPT",
        "READ_THEN_WRITE",
        "REAP_BY_AGE",
        "LOOK_THEN_TAKE",
    ],
)
def test_a_planted_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    assert not holds(check(tmp_path, SAFE, "FAULTS=2", f"MISTAKE_{mistake}"))


@pytest.mark.parametrize("mistake", ["FINISH_WITHOUT_EPOCH", "EPOCH_STANDS_STILL"])
def test_without_the_epoch_a_name_is_not_enough(tmp_path: Path, mistake: str) -> None:
    """As long as a process may hold an older lease of the job, which needs a failover elsewhere."""
    assert holds(check(tmp_path, SAFE, "FAULTS=2", "NO_FAILOVER"))
    assert not holds(check(tmp_path, SAFE, "FAULTS=2", "NO_FAILOVER", f"MISTAKE_{mistake}"))


@pytest.mark.parametrize("mistake", ["NO_REAPER", "SENT_ONCE"])
def test_a_job_that_would_be_stuck_is_found(tmp_path: Path, mistake: str) -> None:
    assert not holds(check(tmp_path, LIVE, "FAULTS=2", f"MISTAKE_{mistake}"))
