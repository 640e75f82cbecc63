"""Small files that other processes read and write at the same time, and folders closed to other users.

Only the standard library: this module is imported in the training process.
"""

import functools
import os
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


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


@functools.cache
def temporary_folder() -> Path:
    """Return the folder for temporary files, chosen as `tempfile.gettempdir` does. That would cache it for
    the whole process, but the job may still set TMPDIR.
    """
    named = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    for path in (*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108 - as tempfile
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):  # noqa: PTH112
            return Path(path).absolute()
    return Path("/tmp")  # noqa: S108 - creating a file there fails with a message


class NotPrivateError(PermissionError):
    """A folder is not this user's own, or is open to others. The text is one line that names it."""


def check_private(path: Path, *, create: bool = False) -> None:
    """Check that a folder belongs to this user and has mode 0700; ``create`` makes a missing one.

    Raises:
        NotPrivateError: it is a link, no folder, somebody else's or open to others.
        OSError: it does not exist, or cannot be made.
    """
    if create:
        with suppress(FileExistsError):
            path.mkdir(0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise NotPrivateError(f"{path} is {what}")
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} belongs to uid {status.st_uid}, not to you")
    if (mode := status.st_mode & 0o777) != 0o700:
        raise NotPrivateError(f"{path} has mode {mode:04o}, not 0700: run chmod 700 {path}")
