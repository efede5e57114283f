"""Processes that a test starts, talks to, freezes and kills."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SEC = 30.0


class Child:
    """A Python process, in a session of its own so that nothing it forks outlives it.

    It takes orders and answers them a line at a time.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], errors: Path
    ) -> None:
        self.errors = errors
        with open(errors, "ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def say(self, *words: object) -> None:
        """Give an order and do not wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout_sec: float = ANSWER_SEC) -> str:
        """The next line that the process prints."""
        with suppress(queue.Empty):
            if line := self._lines.get(timeout=timeout_sec):
                return line
        raise AssertionError(f"no answer; its errors:\n{self.log}")

    def ask(self, *words: object) -> str:
        """Give an order and return the answer."""
        self.say(*words)
        return self.answer()

    @property
    def log(self) -> str:
        """What the process has written to standard error so far."""
        return self.errors.read_text()

    def kill(self) -> None:
        """End it as the kernel does when memory runs out: without a word."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it where it is."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout_sec: float = 10) -> int:
        """Ask it to stop; return its exit code."""
        self.process.terminate()
        return self.process.wait(timeout_sec)

    def lines(self) -> list[str]:
        """Every line not read yet of a process that has ended."""
        self._reader.join(ANSWER_SEC)
        return self.lines_so_far()

    def lines_so_far(self) -> list[str]:
        """Every line not read yet."""
        return [line for _ in range(self._lines.qsize()) if (line := self._lines.get())]

    def end(self) -> None:
        """Kill it and whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(ANSWER_SEC)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
