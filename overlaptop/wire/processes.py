"""Processes of this machine, named for good: a pid together with the time at which it was started."""

from __future__ import annotations

from pathlib import Path


def process_start_time(pid: int) -> int | None:
    """When this process started, in clock ticks since boot; None when there is none (or a zombie).

    With the pid it names a process for good: pids are used again, pairs of both are not. Raises OSError
    when this process cannot look, for want of descriptors.
    """
    if pid <= 0:
        return None
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The second field is the program's name in parentheses and may contain spaces and parentheses.
    after_name = data[data.rfind(b")") + 2 :].split()
    if after_name[0] in (b"Z", b"X"):
        return None
    return int(after_name[19])


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
