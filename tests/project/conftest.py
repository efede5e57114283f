"""A small video, and a database that keeps what is committed."""

from pathlib import Path

import pytest

from project.media import work
from tests.committed import transactional_db

__all__ = ["transactional_db"]

SECONDS = 3


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of three seconds, with a name that ffmpeg would like to read otherwise."""
    path = tmp_path_factory.mktemp("it's a [test]: 1") / "source, 1.mp4"
    work.make_video(path, SECONDS, size="160x90")
    return path


@pytest.fixture
def own_source(source: Path, tmp_path: Path) -> Path:
    """The same video in a directory of the test's own, where a worker puts its output."""
    path = tmp_path / "video.mp4"
    path.symlink_to(source)
    return path
