"""Keeps the standard descriptors' numbers free: a process may have been started without some of them.

What takes the number of one is given the job's output, and children get it for their own.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_LEAST = 3


def copy_above_standard(descriptor: int) -> int:
    """Return a copy of the descriptor that is none of the standard ones; no child inherits it."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LEAST)


def fill_standard() -> None:
    """Open /dev/null in the place of each that is closed: for processes of our own, not for the job's."""
    with suppress(OSError):  # no descriptor is left: none of ours takes their place
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < _LEAST:
            pass
        os.close(descriptor)
