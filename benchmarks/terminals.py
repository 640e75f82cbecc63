"""A program on a terminal of its own: what it writes there, and the CPU that it takes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def on_terminal(words: Sequence[str], columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """Python with these words on a terminal of this size; gives its pid and the terminal, and ends it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.pop("NO_COLOR", None)
        os.environ["TERM"], os.environ["COLORTERM"] = "xterm-256color", "truecolor"
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, *words])
    try:
        yield pid, terminal
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, words: Sequence[str], limit_s: float) -> None:
    """Read until all of these words have been written. Raises SystemExit where they are not in time."""
    written, until_s = b"", time.monotonic() + limit_s
    while not all(word.encode() in written for word in words):
        if time.monotonic() > until_s:
            raise SystemExit(f"nothing was painted within {limit_s:.0f} s: {written[-2000:]!r}")
        written += read(terminal, 0.05)


def read(terminal: int, wait_s: float) -> bytes:
    """What it has written; nothing where that does not come in time, or the program has ended."""
    if not select.select([terminal], [], [], wait_s)[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its program has ended
        time.sleep(wait_s)
        return b""


def read_for(terminal: int, seconds: float) -> int:
    """How many bytes it writes meanwhile."""
    until_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        count += len(read(terminal, 0.05))
    return count


def cpu_s(pid: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
