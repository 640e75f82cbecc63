"""Small files of /sys and /proc, read in full or refused."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

MAX_FILE_BYTES = 64 << 10
MAX_ENTRIES = 4096


class UnavailableError(Exception):
    """The machine does not show it; the message is the reason, in words for the screen."""


def read_text(path: Path) -> str:
    """Return the text of a file, without the line's end.

    Raises UnavailableError where it is absent, closed to us, too long (MAX_FILE_BYTES), or unreadable
    (the speed of a network adapter that is down).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = b""
            while len(data) <= MAX_FILE_BYTES and (more := os.read(descriptor, MAX_FILE_BYTES)):
                data += more
        finally:
            os.close(descriptor)
    except OSError as fault:
        raise UnavailableError(f"{path}: {fault.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UnavailableError(f"{path}: longer than {MAX_FILE_BYTES >> 10} KiB")
    return data.decode("ascii", "replace").strip()


def read_int(path: Path) -> int | None:
    """Return the number that a file consists of, None where it does not."""
    try:
        return int(read_text(path))
    except (UnavailableError, ValueError):
        return None


def entries(folder: Path) -> list[str]:
    """Return the names in a folder, sorted, MAX_ENTRIES at most. Raises UnavailableError."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in islice(found, MAX_ENTRIES))
    except OSError as fault:
        raise UnavailableError(f"{folder}: {fault.strerror}") from None
