"""Waiting for processes, and finding those that a test has left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

MARKER = "OVERLAPTOP_TEST_MARKER"


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    """Poll; True as soon as `condition` holds, False when it does not within `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


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
