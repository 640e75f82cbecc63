"""Holds a job and all its descendants, so that none of them outlives its owner.

``python -I supervisor.py GRACE_S COMMAND [ARG ...]``, started by launcher.py. It needs only the standard
library. Standard input is a pipe from the owner. When its other end closes for any reason (a normal end,
a crash, SIGKILL), all processes are ended.

The supervisor is the subreaper of its descendants, so it still finds a daemon that left its session and
lost its parent (the job's hub). Standard output is a file opened for appending, and the job writes to it
directly: nobody has to read for the job to go on, and the supervisor cuts the file when it grows.

It exits with the job's exit status when no process of the job is left.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

TICK_S = 0.1
LOG_LIMIT_BYTES = 4 << 20
LOG_KEPT_BYTES = 64 << 10
_OWNER = 0
"""Descriptor of the pipe from the owner."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def descendants(root_pid: int) -> list[int]:
    """Return the processes below `root_pid` without zombies, as /proc shows them now."""
    processes = {
        int(entry.name): _state_and_parent(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in processes.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root_pid, ()))
    for pid in found:
        found += children.get(pid, ())
    return [pid for pid in found if processes[pid][0] != "Z"]


def ancestors(pid: int) -> list[int]:
    """Return the processes above `pid`, nearest first. Empty if it has ended."""
    found: list[int] = []
    while (pid := _state_and_parent(pid)[1]) > 0:
        found.append(pid)
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", 0  # it has already ended
    # The command's name is in brackets and may contain spaces and brackets itself.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state, int(parent)


class Supervisor:
    """Runs one command until it ends, or until its owner ends it."""

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        """`grace_s`: time for torchrun to end its ranks, and then for the rest to end itself."""
        self._command = command
        self._grace_s = grace_s
        self._pid = 0
        self._status: int | None = None
        self._asked_to_stop = False

    def run(self) -> int:
        """Run until the command ends or we are asked to stop. Return its exit status as a shell would.

        No process that the command started is alive when this returns.
        Ending takes at most about three times the grace.
        """
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Reaped by _reap, like the orphans. Kept, because a dropped Popen reaps by itself.
        job = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        self._pid = job.pid
        owner = select.poll()
        owner.register(_OWNER, select.POLLIN)
        while not (self._asked_to_stop or self._job_ended() or owner.poll(TICK_S * 1000)):
            trim_log(1)
        self._end_job()
        assert self._status is not None
        return self._status if self._status >= 0 else 128 - self._status

    def _end_job(self) -> None:
        if not self._job_ended():
            send(self._pid, signal.SIGTERM)  # torchrun ends its ranks
            self._wait(self._job_ended)
            _signal_all(signal.SIGTERM)
        # After a normal end, the hub lingers for a moment, so that dashboards see it.
        self._wait(self._none_left)
        if not self._none_left():
            _signal_all(signal.SIGTERM)
            self._wait(self._none_left)
        while not self._none_left():
            _signal_all(signal.SIGKILL)
            time.sleep(TICK_S / 10)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._asked_to_stop = True

    def _job_ended(self) -> bool:
        self._reap()
        return self._status is not None

    def _none_left(self) -> bool:
        self._reap()
        return self._job_ended() and not descendants(os.getpid())

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = os.waitstatus_to_exitcode(wait_status)

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + self._grace_s
        while not done() and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 2)


def trim_log(log_fd: int) -> None:
    """Cut a regular file that grew over LOG_LIMIT_BYTES to its last LOG_KEPT_BYTES.

    Its writers append, so they continue at the new end. Data written during the cut may be lost.
    """
    size_bytes = os.fstat(log_fd).st_size
    if size_bytes <= LOG_LIMIT_BYTES:
        return
    tail = os.pread(log_fd, LOG_KEPT_BYTES, size_bytes - LOG_KEPT_BYTES)
    os.ftruncate(log_fd, 0)
    os.write(log_fd, tail)


def end_with_parent() -> None:
    """For `preexec_fn`: send this process SIGTERM when the thread that started it ends.
    torchrun then ends its ranks.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _signal_all(signum: signal.Signals) -> None:
    for pid in descendants(os.getpid()):
        send(pid, signum)


if __name__ == "__main__":
    sys.exit(Supervisor(sys.argv[2:], float(sys.argv[1])).run())
