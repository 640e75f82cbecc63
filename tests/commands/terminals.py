"""The dashboard in a pseudo-terminal, for the tests of what a person sees and types."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from typing import IO

START_LIMIT_S = 90


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

    def hang_up(self) -> None:
        """Take the terminal away, as closing its window does."""
        os.close(self._ours)
        self._ours = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)
        if self._ours >= 0:
            os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 0.5)
        try:
            data = os.read(self._ours, 1 << 16) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.seen += data
        return bool(data) or self.process.poll() is None
