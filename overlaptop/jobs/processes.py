"""Processes of this machine, named for good: a pid together with the time at which it was started."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

# linux/pidfd.h: struct pidfd_info as it was first, which ends with the exit code.
_PIDFD_INFO_BYTES, _PIDFD_INFO_EXIT = 64, 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11


def process_start_time(pid: int) -> int | None:
    """When this process started, in clock ticks since boot; None when there is none (or a zombie).

    With the pid it names a process for good: pids are used again, pairs of both are not. Raises OSError
    when this process cannot look, for want of descriptors.
    """
    if pid <= 0:
        return None
    try:
        fields = _stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def parent_of(pid: int) -> int | None:
    """The pid of a process's parent; None when the process has ended."""
    try:
        return int(_stat_fields(pid)[1])
    except OSError:
        return None


def _stat_fields(pid: int) -> list[bytes]:
    """Of /proc/PID/stat, from the state on: the name before it may have spaces and parentheses in it."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def unix_ns(start_ticks: int) -> int:
    """The Unix time of a `process_start_time`, as far as the clock has not been set since."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(age_s * 1e9)


def exit_code(pid: int, pidfd: int) -> int | None:
    """How this process, which has ended and need not be a child, did: its exit status, or less than 0 the
    signal. None: it cannot be known.
    """
    try:
        fields = _stat_fields(pid)
        if fields[0] == b"Z":
            return os.waitstatus_to_exitcode(int(fields[-1]))  # proc(5): exit_code
    except OSError:
        pass  # its parent has waited for it
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # before Linux 6.15
        return None
    (mask,), (status,) = struct.unpack_from("Q", info), struct.unpack_from("i", info, _PIDFD_INFO_BYTES - 4)
    return os.waitstatus_to_exitcode(status) if mask & _PIDFD_INFO_EXIT else None


def signal_name(exit_code: int | None) -> str:
    """``SIGKILL``; empty where no signal ended the process, or nothing is known."""
    if exit_code is None or exit_code >= 0:
        return ""
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def is_alive(pid: int, start_ticks: int | None) -> bool:
    """Whether exactly this process still runs. A process that was never seen (None) does not; one that
    cannot be looked at just now is taken to.
    """
    if start_ticks is None:
        return False
    try:
        return process_start_time(pid) == start_ticks
    except OSError:
        return True
