"""Holds a job and all its descendants, so that none of them outlives its owner.

``python -I supervisor.py GRACE_S COMMAND [ARG ...]``, started by launcher.py. It needs only the standard
library. Standard input is a pipe from the owner. When its other end closes for any reason (a normal end,
a crash, SIGKILL), all processes are ended.

The supervisor is the subreaper of its descendants, so it still finds a daemon that left its session and
lost its parent (the job's hub). A daemon that ended stays a zombie until the supervisor ends, too. Standard
output is a file opened for appending, and the job writes to it directly: nobody has to read for the job to
go on, and the supervisor cuts the file when it grows.

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
from collections.abc import Sequence
from pathlib import Path

TICK_S = 0.1
LOG_LIMIT_BYTES = 4 << 20
LOG_KEPT_BYTES = 64 << 10
_OWNER = 0  # Descriptor of the pipe from the owner

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


def run(command: Sequence[str], grace_s: float) -> int:
    """Run a command until it ends, or we are asked to stop. Return its exit status as a shell would.

    No process that the command started is alive when this returns. ``grace_s``: time for torchrun to end
    its ranks, and then for the rest to end itself; ending takes at most about three times as long.
    """
    asked: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _frame: asked.append(number))
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
    owner = select.poll()
    owner.register(_OWNER, select.POLLIN)
    while not asked and job.poll() is None and not owner.poll(TICK_S * 1000):
        trim_log(1)
    if job.poll() is None:
        job.terminate()  # torchrun ends its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(grace_s)
        _signal_all(signal.SIGTERM)
    # After a normal end, the hub lingers for a moment, so that dashboards see it.
    for signum in (signal.SIGTERM, signal.SIGKILL):
        give_up_s = time.monotonic() + grace_s
        while descendants(os.getpid()) and time.monotonic() < give_up_s:
            time.sleep(TICK_S / 2)
        _signal_all(signum)
    while descendants(os.getpid()):
        _signal_all(signal.SIGKILL)
        time.sleep(TICK_S / 10)
    status = job.wait()
    return status if status >= 0 else 128 - status


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
    sys.exit(run(sys.argv[2:], float(sys.argv[1])))
