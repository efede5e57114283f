"""The work of each stage, done by ffmpeg on real files."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from project import children

CHECK_EVERY_SEC = 0.2

VIDEO = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
# Speech recognizers are trained on one channel at 16 kHz.
SPEECH = ["-vn", "-ac", "1", "-ar", "16000", "-c:a", "pcm_s16le"]


class WorkFailed(Exception):
    """ffmpeg failed; the message is that of ffmpeg."""


def run(
    stage: str, payload: Mapping[str, Any], output: Path, keep_going: Callable[[], object]
) -> None:
    """Do the work of `stage` and write `output`. Meanwhile, `keep_going` is called several times a
    second; it can stop the work by raising an exception.

    `payload` has the `source`, and may have `start` and `seconds` for a part of it, the `text` to
    burn in, and `native_speed` to read no faster than the source plays.

    Raises:
        WorkFailed: ffmpeg ended with an error.
    """
    _ffmpeg(_arguments(stage, payload), output, keep_going)


def suffix(stage: str) -> str:
    """Return the suffix of the files that `stage` writes."""
    return ".wav" if stage == "asr" else ".mp4"


def make_video(output: Path, seconds: float, size: str = "640x360") -> None:
    """Write a test video with a tone."""
    picture = f"testsrc2=size={size}:rate=25:duration={seconds}"
    tone = f"sine=frequency=440:duration={seconds}"
    _ffmpeg(["-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", tone, *VIDEO], output)


def _arguments(stage: str, payload: Mapping[str, Any]) -> list[str]:
    pace = ["-re"] if payload.get("native_speed") else []
    start = ["-ss", str(payload["start"])] if "start" in payload else []
    length = ["-t", str(payload["seconds"])] if "seconds" in payload else []
    source = [*pace, *start, *length, "-i", f"file:{payload['source']}"]
    match stage:
        case "clip":
            return [*source, *VIDEO]
        case "burnin":
            return [*source, "-vf", _drawtext(payload["text"]), *VIDEO]
        case "asr":
            return [*source, *SPEECH]
    raise WorkFailed(f"there is no work for the stage {stage!r}")


def _drawtext(text: str) -> str:
    import font_roboto

    options = {
        "fontfile": _escaped(font_roboto.RobotoMedium),
        "text": _escaped(text),
        "expansion": "none",
        "fontsize": "h/10",
        "fontcolor": "white",
        "box": "1",
        "boxcolor": "black@0.6",
        "boxborderw": "8",
        "x": "(w-text_w)/2",
        "y": "h-2*text_h",
    }
    return "drawtext=" + ":".join(f"{name}={value}" for name, value in options.items())


def _escaped(value: str) -> str:
    # Once for the filter's options, once more for the filter graph.
    # https://ffmpeg.org/ffmpeg-filters.html#Notes-on-filtergraph-escaping
    return re.sub(r"([\\'\[\],;])", r"\\\1", re.sub(r"([\\':])", r"\\\1", value))


def _ffmpeg(
    arguments: list[str], output: Path, keep_going: Callable[[], object] = lambda: None
) -> None:
    import imageio_ffmpeg

    program = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-hide_banner", "-loglevel", "error"]
    with tempfile.TemporaryFile() as complaints:
        process = children.start(
            [*program, *arguments, "-y", f"file:{output}"],
            stdout=subprocess.DEVNULL,
            stderr=complaints,
        )
        try:
            while (code := _ended(process)) is None:
                keep_going()
        finally:
            process.kill()
            process.wait()
        if code:
            complaints.seek(0)
            raise WorkFailed(complaints.read().decode(errors="replace").strip() or f"exit {code}")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(CHECK_EVERY_SEC)
    except subprocess.TimeoutExpired:
        return None
