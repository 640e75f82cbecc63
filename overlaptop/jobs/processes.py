"""Processes of this machine, identified by pid and start time, because the system reuses pids."""

import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

# linux/pidfd.h: the first version of struct pidfd_info, which ends with the exit code.
_PIDFD_INFO_BYTES, _PIDFD_INFO_EXIT = 64, 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11


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


def exit_code(pid: int, pidfd: int) -> int | None:
    """Return the exit status of any ended process, or minus its signal. None if unknown."""
    try:
        fields = _stat_fields(pid)
        if fields[0] == b"Z":
            return os.waitstatus_to_exitcode(int(fields[-1]))  # proc(5): exit_code
    except OSError:
        pass  # its parent has already collected the status
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # before Linux 6.15
        return None
    (mask,), (status,) = struct.unpack_from("Q", info), struct.unpack_from("i", info, _PIDFD_INFO_BYTES - 4)
    return os.waitstatus_to_exitcode(status) if mask & _PIDFD_INFO_EXIT else None


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
