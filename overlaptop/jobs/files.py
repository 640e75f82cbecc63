"""Small files that other processes read and write at the same time."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, whole. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


def keep(path: Path, data: bytes) -> None:
    """Write it as `write_whole` does; without data, remove the file. Where that fails, whoever reads it
    later finds what was there before, or nothing.
    """
    with suppress(OSError):
        if data:
            write_whole(path, data)
        else:
            path.unlink(missing_ok=True)


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a file, which is made with mode 0600 where `flags` say so. Raises OSError, also where
    it is a link or no file at all.
    """
    # O_NONBLOCK: opening a FIFO of this name must not wait for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is not a file")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """A small file of ours, whole. Raises OSError, also where it is longer, or a link or no file at all."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} is too long")
    return data
