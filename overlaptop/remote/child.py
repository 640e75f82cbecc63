"""A connection's child process: a command whose pipes are read and written without waiting."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

MAX_UNSENT_BYTES = 1 << 16
_DISCARD_BYTES = 1 << 16
_KEPT_ERROR_BYTES = 1 << 13
_ERROR_READ_BYTES = 1 << 14
_LOOK_S = 0.02


class ChildProcess:
    """A child process, its pipes, and its standard error."""

    def __init__(self, argv: Sequence[str], *, interactive: bool = False) -> None:
        """Start the process. Raises OSError if that fails.

        ``interactive``: it may ask on the terminal, so it stays in the terminal's process group. Otherwise
        it has its own session, which can be ended as a whole: keys do not reach it, and a question fails.
        """
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=not interactive,
        )
        self.interactive = interactive
        self.pid = self._process.pid
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._in, self._out, self._err = self._pipes = [pipe for pipe in pipes if pipe is not None]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self.out_fd = self._out.fileno()
        self._unsent = bytearray()
        self._errors = bytearray()

    @property
    def errors(self) -> str:
        return self._errors.decode(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether the process has ended. Its pipes may still hold output."""
        # Not reaped yet, it keeps the number of its process group.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._is_reaped or os.waitid(os.P_PID, self.pid, flags) is not None

    @property
    def _is_reaped(self) -> bool:
        return self._process.returncode is not None

    def read(self, most_bytes: int) -> bytes | None:
        """Return its standard output. Empty: nothing now. None: nothing more will come."""
        return _read(self._out.fileno(), most_bytes)

    def read_errors(self) -> bytes | None:
        """Return its standard error, like `read`, and keep it in `errors`."""
        data = _read(self._err.fileno(), _ERROR_READ_BYTES)
        if data:
            self._errors += data
            del self._errors[:-_KEPT_ERROR_BYTES]
        return data

    def write(self, data: bytes) -> bool:
        """Send bytes, now or later. False if it has not read the previous ones yet."""
        if self._in.closed or len(self._unsent) + len(data) > MAX_UNSENT_BYTES:
            return False
        self._unsent += data
        self.flush()
        return True

    def flush(self) -> None:
        while self._unsent and not self._in.closed:
            try:
                del self._unsent[: os.write(self._in.fileno(), self._unsent)]
            except BlockingIOError:
                return
            except OSError:  # it has closed its input; `ended` shows its end
                self._unsent.clear()

    def close_input(self) -> None:
        self.flush()
        with suppress(OSError):
            self._in.close()

    def kill(self) -> None:
        """End it at once. In the terminal's group, only ask it to: it ends its own children."""
        self.signal(signal.SIGTERM if self.interactive else signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        if not self._is_reaped:
            with suppress(ProcessLookupError, PermissionError):  # sudo's child belongs to root
                (os.kill if self.interactive else os.killpg)(self.pid, number)

    def reap(self) -> int | None:
        """Reap an ended process, and end its remaining children. Returns its status, or None if it runs."""
        if not self._is_reaped and self.ended:
            self.signal(signal.SIGKILL)
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.close()
            self._process.wait()
        return self._process.returncode


def end_all(processes: Iterable[ChildProcess], patience_s: float) -> None:
    """End these processes together: close the input of each, terminate it after ``patience_s``, and kill it
    after the same time again. Output is discarded meanwhile, so that no process blocks on it.
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
    # Killed, and still there: it belongs to another user (sudo).


def _read(descriptor: int, most_bytes: int) -> bytes | None:
    try:
        return os.read(descriptor, most_bytes) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
