"""Processes of this machine, identified by pid and start time, because the system reuses pids."""

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path


def process_start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot. None if it does not exist or is a zombie.

    Raises OSError if no descriptor is left for the check.
    """
    if pid <= 0:
        return None
    try:
        fields = _stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def parent_of(pid: int) -> int | None:
    try:
        return int(_stat_fields(pid)[1])
    except OSError:
        return None


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, which may contain spaces and parentheses."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def exit_code(pid: int) -> int | None:
    """Return the exit status of a zombie, or minus its signal. None if its parent has collected it."""
    try:
        fields = _stat_fields(pid)
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == b"Z" else None  # proc(5): exit_code


def signal_name(exit_code: int | None) -> str:
    """Return a name like ``SIGKILL``. Empty if no signal ended the process, or if it is not known."""
    if exit_code is None or exit_code >= 0:
        return ""
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def is_alive(pid: int, start_ticks: int | None) -> bool:
    """Whether this process still runs. False if its start time was never known, True if unknown now."""
    if start_ticks is None:
        return False
    try:
        return process_start_time(pid) == start_ticks
    except OSError:
        return True


def raise_descriptor_limit() -> None:
    """Allow this process all descriptors that it can have: libzmq aborts a process that gets no more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
