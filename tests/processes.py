"""Waiting for processes, and finding those that a test has left behind."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from overlaptop.jobs.processes import process_start_time

PATIENCE_S = 60.0
T = TypeVar("T")
MARKER = "OVERLAPTOP_TEST_MARKER"


def eventually(probe: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The first true result of the probe."""
    deadline_s = time.monotonic() + patience_s
    while not (result := probe()):
        assert time.monotonic() < deadline_s, f"gave up waiting: {probe}"
        time.sleep(0.01)
    return result


def runs(pid: int) -> bool:
    """Whether there is such a process still (a zombie is none)."""
    return process_start_time(pid) is not None


class Traces:
    """The processes that carry this test's marker in their environment: all that it started."""

    def __init__(self, marker: str) -> None:
        self._entry = f"{MARKER}={marker}".encode()

    def alive(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if self._entry in environment.split(b"\0"):
                found.append(int(entry.name))
        return found
