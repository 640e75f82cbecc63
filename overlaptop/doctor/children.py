"""Child processes with a time limit: a driver or a file system may hang them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

MAX_OUTPUT_BYTES = 1 << 18
"""Of each of the two outputs. A process that writes more is ended."""
_POLL_S = 0.05
_REAP_S = 0.5
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Completed:
    """How a process ended, and what it wrote."""

    status: int | None
    """As subprocess has it; None: it had not ended in time, or wrote too much."""
    output: str
    errors: str


class Child:
    """A process without a terminal to ask on, in a session of its own, and without input."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Starts it; raises OSError where it cannot be started. ``environ``: None: this process's own."""
        self._began_s = time.monotonic()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = {self._process.stdout.fileno(): b"", self._process.stderr.fileno(): b""}
        for descriptor in self._pipes:
            os.set_blocking(descriptor, False)

    def wait(self, timeout_s: float) -> Completed:
        """What it did by its end, or by ``timeout_s`` after its start; it is over afterwards.

        Whoever holds its outputs open after its end (ssh's shared connection does) is not waited for.
        """
        deadline_s = self._began_s + timeout_s
        open_pipes = set(self._pipes)
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                ended = self._process.poll() is not None
                wait_s = 0.0 if ended else max(0.0, min(left_s, _POLL_S))
                select.select(list(open_pipes), [], [], wait_s)
                received = [pipe for pipe in tuple(open_pipes) if self._read(pipe, open_pipes)]
                if any(len(data) > MAX_OUTPUT_BYTES for data in self._pipes.values()):
                    break
                if ended and not received:
                    return self._completed(self._process.returncode)
                # One that has ended by itself has all it wrote read: whoever waits may be late.
                if left_s <= 0 and not (ended and received):
                    break
            return self._completed(None)
        finally:
            self.close()

    def close(self) -> None:
        """Ends it and what it has started, if it is not over. One that cannot be ended is left behind."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # sudo's child is root's
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, descriptor: int, open_pipes: set[int]) -> bool:
        """Takes in what can be read now; whether there was something."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        self._pipes[descriptor] += data
        if not data:
            open_pipes.discard(descriptor)
        return bool(data)

    def _completed(self, status: int | None) -> Completed:
        output, errors = (data[:MAX_OUTPUT_BYTES].decode(errors="replace") for data in self._pipes.values())
        return Completed(status, output, errors)
