"""What would be published: the whole package, and the README's quick start runs from it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import markdown
from tests.docs.site import Site
from tests.docs.test_readme import follow_the_quick_start

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)]

CONSTRAINTS = markdown.ROOT / "constraints.txt"


def run(*command: object) -> None:
    # Nothing of this run's is to be found by the interpreter of another environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes: an sdist of the working copy, and a wheel of the sdist."""
    path = tmp_path_factory.mktemp("dist")
    # Setuptools takes in what an egg-info names, which may be from an earlier build.
    left_behind = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
    clean = shutil.copytree(markdown.ROOT, path / "clean", ignore=left_behind)
    run(sys.executable, "-m", "build", "--outdir", path, clean)
    return path


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [wheel] = dist.glob("*.whl")
    return wheel


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Iterator[Site]:
    """A newcomer's project in an environment that has the wheel and what it requires."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "-c", CONSTRAINTS, wheel)
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", "reports", python)
    yield site
    site.leave()


def files_of_the_package() -> set[str]:
    files = (path for path in (markdown.ROOT / "jobreaper").rglob("*") if path.is_file())
    names = {path.relative_to(markdown.ROOT).as_posix() for path in files}
    return {name for name in names if "__pycache__" not in name}


def test_the_wheel_holds_each_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - about == files_of_the_package()
    assert any(name.endswith("/licenses/LICENSE") for name in about)
    # The comparison would miss what the working copy lacks too.
    for kind in (".sql", ".html", ".css", "py.typed"):
        assert any(name.endswith(kind) for name in names), kind


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files_of_the_package() | {"README.md", "LICENSE", "pyproject.toml"} <= names


def test_the_quick_start_runs_from_the_wheel(site: Site) -> None:
    where = site.run("python -c 'import jobreaper; print(jobreaper.__file__)'")
    assert where.startswith(str(site.home.parent)), "this working copy is not what is tested"
    follow_the_quick_start(site)
