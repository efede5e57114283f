"""What ffmpeg makes of a source, stage by stage."""

import subprocess
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import psutil
import pytest

from project.media import work
from tests.project.conftest import SECONDS

NASTY = "It's 100 %{pts}: [a], b; \\c = 'd'"


def run(stage: str, payload: Mapping[str, Any], output: Path) -> None:
    work.run(stage, payload, output, keep_going=lambda: None)


def seconds_of(path: Path) -> float:
    return float(imageio_ffmpeg.count_frames_and_secs(str(path))[1])


def picture_of(path: Path) -> bytes:
    return subprocess.run(
        [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-i", f"file:{path}"),
            *("-frames:v", "1", "-pix_fmt", "gray", "-f", "rawvideo", "-"),
        ],
        capture_output=True,
        check=True,
    ).stdout


def test_a_clip_is_the_wanted_part_of_the_source(source: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    run("clip", {"source": str(source), "start": 1, "seconds": 1.2}, clip)
    assert seconds_of(clip) == pytest.approx(1.2, abs=0.1)
    assert picture_of(clip) != picture_of(source)


@pytest.mark.parametrize("text", ["Hello", NASTY])
def test_text_is_burned_in_to_the_letter(source: Path, tmp_path: Path, text: str) -> None:
    part = {"source": str(source), "seconds": 0.2}
    run("clip", part, tmp_path / "plain.mp4")
    run("burnin", {**part, "text": text}, tmp_path / "titled.mp4")
    # The same text, on a way that needs no escapes.
    (tmp_path / "text").write_text(text)
    from_file = work._drawtext("TEXT").replace(":text=TEXT:", ":textfile=text:")
    subprocess.run(
        [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-t", "0.2", "-i", f"file:{source}"),
            *("-vf", from_file, *work.VIDEO, "expected.mp4"),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert picture_of(tmp_path / "titled.mp4") == picture_of(tmp_path / "expected.mp4")
    assert picture_of(tmp_path / "titled.mp4") != picture_of(tmp_path / "plain.mp4")


def test_sound_is_extracted_as_speech_recognisers_want_it(source: Path, tmp_path: Path) -> None:
    sound = tmp_path / "sound.wav"
    run("asr", {"source": str(source)}, sound)
    with wave.open(str(sound)) as reader:
        assert (reader.getnchannels(), reader.getframerate()) == (1, 16_000)
        assert reader.getnframes() / 16_000 == pytest.approx(SECONDS, abs=0.2)


def test_a_failure_is_told_in_the_words_of_ffmpeg(tmp_path: Path) -> None:
    with pytest.raises(work.WorkFailed, match="No such file"):
        run("clip", {"source": str(tmp_path / "missing.mp4")}, tmp_path / "clip.mp4")


def test_an_unknown_stage_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(work.WorkFailed, match="'dance'"):
        run("dance", {"source": str(source)}, tmp_path / "dance.mp4")


def test_ffmpeg_ends_with_the_work(source: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    before = psutil.Process().children()
    started: list[psutil.Process] = []

    def keep_going() -> None:
        started.extend(child for child in psutil.Process().children() if child not in before)
        raise Enough

    long = {"source": str(source), "native_speed": True}
    with pytest.raises(Enough):
        work.run("clip", long, tmp_path / "clip.mp4", keep_going)
    assert started
    assert not any(child.is_running() for child in started)
