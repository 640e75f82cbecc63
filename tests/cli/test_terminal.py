"""The dashboard in a real terminal (a pseudo-terminal), as ``overlaptop demo`` opens it."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from .conftest import Traces

START_LIMIT_S = 90
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"


class Terminal:
    """A program on a terminal of 120 columns and 32 rows."""

    def __init__(self, *words: str, stderr: IO[bytes] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 32, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "overlaptop", *words],
            stdin=theirs, stdout=theirs, stderr=stderr or theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def read_until(self, text: bytes, limit_s: float = START_LIMIT_S) -> None:
        deadline_s = time.monotonic() + limit_s
        while text not in self.seen:
            assert time.monotonic() < deadline_s, self.seen[-3000:]
            if not self._read():
                raise AssertionError(self.seen[-3000:])

    def read_to_end(self) -> None:
        while self._read():
            pass

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)
        os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 0.5)
        try:
            data = os.read(self._ours, 1 << 16) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.seen += data
        return bool(data) or self.process.poll() is None


@pytest.fixture
def dashboard(traces: Traces) -> Iterator[Terminal]:
    """``overlaptop demo``, with the first steps on the screen."""
    terminal = Terminal("demo", "ddp", "--nproc", "2", "--", "--layers", "2", "--width", "64")
    terminal.read_until(b"optimizer")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "ctrl+c"])
def test_leaving_the_dashboard_of_a_demo_ends_its_job(
    dashboard: Terminal, traces: Traces, key: str
) -> None:
    dashboard.type(key)
    dashboard.read_to_end()
    assert dashboard.process.wait(START_LIMIT_S) == 0
    assert LEAVE_ALTERNATE_SCREEN in dashboard.seen
    assert traces.alive() == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_dashboard_that_a_signal_ends_gives_the_terminal_back_and_leaves_no_process(
    dashboard: Terminal, traces: Traces, signum: signal.Signals
) -> None:
    dashboard.process.send_signal(signum)
    dashboard.read_to_end()
    assert dashboard.process.wait(START_LIMIT_S) == 128 + signum
    assert LEAVE_ALTERNATE_SCREEN in dashboard.seen
    assert b"Traceback" not in dashboard.seen
    assert traces.alive() == []


def test_a_job_that_fails_is_explained_after_the_dashboard_was_left(traces: Traces) -> None:
    terminal = Terminal("demo", "ddp", "--nproc", "2", "--", "--nonsense")
    try:
        terminal.read_until(b"ended")
        terminal.type("q")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 2
        assert b"unrecognized arguments: --nonsense" in terminal.seen
        assert b"Traceback" not in terminal.seen
    finally:
        terminal.close()
    assert traces.alive() == []


def test_without_a_job_a_workload_can_be_chosen_and_ends_with_the_dashboard(traces: Traces) -> None:
    terminal = Terminal()
    try:
        terminal.read_until(b"allreduce_matmul")
        terminal.type("\r")
        terminal.read_until(b"optimizer")
        terminal.type("q")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
    finally:
        terminal.close()
    assert traces.alive() == []


@pytest.mark.parametrize("words", [["--theme", "nonsense"], ["demo", "--theme", "nonsense"]])
def test_a_theme_that_there_is_not_is_a_usage_error(words: list[str]) -> None:
    terminal = Terminal(*words)
    try:
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 2
        assert b"no theme 'nonsense'; there are: " in terminal.seen
    finally:
        terminal.close()


@pytest.mark.parametrize("words", [[], ["demo"]])
def test_a_dashboard_whose_drawing_would_go_to_a_file_says_so_where_it_is_seen(
    words: list[str], tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("wb") as file:
        terminal = Terminal(*words, stderr=file)
    try:
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 2
        assert b"draws on stderr" in terminal.seen
        assert terminal.seen.count(b"\n") == 1
    finally:
        terminal.close()
