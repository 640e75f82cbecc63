"""Small files that other processes read and write at the same time."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


def keep(path: Path, data: bytes) -> None:
    """Write the file as `write_whole` does. Without data, remove it. On failure, a later reader finds the
    old content, or none.
    """
    with suppress(OSError):
        if data:
            write_whole(path, data)
        else:
            path.unlink(missing_ok=True)


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file, created with mode 0600 if `flags` say so. Raises OSError, also
    for links and special files.
    """
    # O_NONBLOCK: opening a FIFO of this name must not wait for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is not a file")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return a small file of ours. Raises OSError, also for longer files, links and special files."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} is too long")
    return data
