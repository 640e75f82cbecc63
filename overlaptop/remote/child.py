"""A connection's child process: a command whose pipes are read and written without ever waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

MAX_UNSENT_BYTES = 1 << 16
_DISCARD_BYTES = 1 << 16
_KEPT_ERROR_BYTES = 1 << 13
_ERROR_READ_BYTES = 1 << 14
_LOOK_S = 0.02


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is over: a process must not be started and then forgotten.

    The signal's handler is replaced, not the signal blocked: the process would inherit that.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # nothing is raised here
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, at: came.append((number, at)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])


class ChildProcess:
    """A child process, its pipes, and what it wrote to its standard error."""

    def __init__(
        self, argv: Sequence[str], *, interactive: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        """Starts it; raises OSError where it cannot be started. ``environ``: None: this process's own.

        ``interactive``: it may ask on the terminal, so it stays in the terminal's process group. Else it
        has a session of its own: no key on the terminal reaches it, what would ask there fails at once
        instead of being stopped, and it can be ended whole.
        """
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environ,
            start_new_session=not interactive,
        )
        self.interactive = interactive
        self.pid = self._process.pid
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        assert None not in pipes
        self._in, self._out, self._err = self._pipes = [pipe for pipe in pipes if pipe is not None]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self.out_fd = self._out.fileno()
        """Where `read` reads."""
        self._unsent = bytearray()
        self._errors = bytearray()
        self._input_closed = self._warned = self._closed = False

    @property
    def errors(self) -> str:
        """The last of what it wrote to its standard error."""
        return self._errors.decode(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether the process is over; what it wrote may still be in its pipes."""
        # It is not reaped here: until then its group keeps its number.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._closed or os.waitid(os.P_PID, self.pid, flags) is not None

    def read(self, most_bytes: int) -> bytes | None:
        """What it wrote to its standard output; empty: nothing now; None: nothing will come any more."""
        return _read(self._out.fileno(), most_bytes)

    def read_errors(self) -> bytes | None:
        """As `read`, of its standard error; kept in `errors` too."""
        data = _read(self._err.fileno(), _ERROR_READ_BYTES)
        if data:
            self._errors += data
            del self._errors[:-_KEPT_ERROR_BYTES]
        return data

    def write(self, data: bytes) -> bool:
        """Gives it these bytes, now or later; False: it has not read what it was given before."""
        if self._input_closed or len(self._unsent) + len(data) > MAX_UNSENT_BYTES:
            return False
        self._unsent += data
        self.flush()
        return True

    def flush(self) -> None:
        """Writes what has not been written, as far as it is read."""
        while self._unsent and not self._input_closed:
            try:
                del self._unsent[: os.write(self._in.fileno(), self._unsent)]
            except BlockingIOError:
                return
            except OSError:  # it reads no more: its end is seen elsewhere
                self._unsent.clear()

    def close_input(self) -> None:
        """Closes its standard input. What has not been written by now is lost."""
        self.flush()
        self._input_closed = True
        with suppress(OSError):
            self._in.close()

    def kill(self) -> None:
        """Ends it at once. One that shares the terminal's group is warned by the first call: what it has
        started is then its own to end.
        """
        self.signal(signal.SIGTERM if self.interactive and not self._warned else signal.SIGKILL)
        self._warned = True

    def signal(self, number: signal.Signals) -> None:
        """Signals the process and what it has started."""
        if not self._closed:
            with suppress(ProcessLookupError, PermissionError):  # sudo's child is root's
                (os.kill if self.interactive else os.killpg)(self.pid, number)

    def reap(self) -> int | None:
        """Reaps a process that has ended, and ends what it left; its status. None: it goes on."""
        if self._closed:
            return self._process.returncode
        if not self.ended:
            return None
        self.signal(signal.SIGKILL)
        self._closed = True
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.close()
        return self._process.wait()


def end_all(processes: Iterable[ChildProcess], patience_s: float) -> None:
    """Ends these processes, all at the same time, and comes back when none is left.

    The input of each is closed; after ``patience_s`` it is terminated, after as long again killed. What a
    process writes meanwhile is thrown away: it must not stand still for it.
    """
    left = [process for process in processes if process.reap() is None]
    for process in left:
        process.close_input()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in left:
            if number is not None:
                process.signal(number)
        deadline_s = time.monotonic() + patience_s
        while left and time.monotonic() < deadline_s:
            for process in left:
                process.read(_DISCARD_BYTES)
                process.read_errors()
            time.sleep(_LOOK_S)
            left = [process for process in left if process.reap() is None]
    # Killed, and still there: another user's (sudo). Its input has ended, more cannot be done.


def _read(descriptor: int, most_bytes: int) -> bytes | None:
    try:
        return os.read(descriptor, most_bytes) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
