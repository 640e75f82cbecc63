"""A program on a terminal of its own: what it writes there, and the CPU that it takes."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path


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
