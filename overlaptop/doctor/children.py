"""Child processes with a time limit: a driver or a file system may hang them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overlaptop.remote.child import ChildProcess

MAX_OUTPUT_BYTES = 1 << 18
"""A process that writes more is ended."""
_LOOK_S = 0.02
_REAP_S = 0.5
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Completed:
    """How a process ended, and what it wrote."""

    status: int | None
    """As subprocess has it; None: it had not ended in time, or wrote too much."""
    output: str
    errors: str
    """The last of it."""


class Child:
    """A process without a terminal to ask on, in a session of its own, and without input."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Starts it; raises OSError where it cannot be started. ``environ``: None: this process's own."""
        self._began_s = time.monotonic()
        self._process = ChildProcess(argv, environ=environ)
        self._process.close_input()

    def wait(self, timeout_s: float) -> Completed:
        """What it did by its end, or by ``timeout_s`` after its start; it is over afterwards.

        Whoever holds its outputs open after its end (ssh's shared connection does) is not waited for.
        """
        deadline_s, status, output = self._began_s + timeout_s, None, b""
        try:
            while len(output) <= MAX_OUTPUT_BYTES:
                late, ended = time.monotonic() >= deadline_s, self._process.ended
                data, errors = self._process.read(_READ_BYTES), self._process.read_errors()
                output += data or b""
                # One that has ended by itself has all it wrote read: whoever waits may be late.
                if late and not ended:
                    break
                if ended and not (data or errors):
                    status = self._process.reap()
                    break
                if not (data or errors):
                    time.sleep(_LOOK_S)
        finally:
            self.close()
        return Completed(status, output[:MAX_OUTPUT_BYTES].decode(errors="replace"), self._process.errors)

    def close(self) -> None:
        """Ends it and what it has started, if it is not over. One that cannot be ended is left behind."""
        self._process.kill()
        deadline_s = time.monotonic() + _REAP_S
        while self._process.reap() is None and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
