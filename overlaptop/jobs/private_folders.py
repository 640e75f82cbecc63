"""Folders closed to other users, checked as tmux checks the one of its sockets.

Only the standard library: this module is imported in the training process.
"""

import functools
import os
import stat
from contextlib import suppress
from pathlib import Path


@functools.cache
def temporary_folder() -> Path:
    """Return the folder for temporary files, chosen as `tempfile.gettempdir` does. That function would
    cache its result for the whole process, but the job may still set TMPDIR. This one caches it only for
    us.
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
