"""Keeps the numbers of the standard descriptors free, since a process may be started without some of them.

A file that takes such a number receives the job's output, and child processes inherit it.
"""

import fcntl
import os
from contextlib import suppress

_LEAST = 3


def copy_above_standard(descriptor: int) -> int:
    """Return a copy of the descriptor above the standard numbers. Children do not inherit it."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LEAST)


def fill_standard() -> None:
    """Open /dev/null for each closed standard descriptor. For our own processes, not for the job's."""
    with suppress(OSError):  # no descriptor is left, so none of ours can take these numbers
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < _LEAST:
            pass
        os.close(descriptor)
