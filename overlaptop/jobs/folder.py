"""A job's folder in the socket directory: its path, contents and owner.

    $OVERLAPTOP_DIR, else <temporary directory>/overlaptop-<uid>     mode 0700, ours, not a link
      <job key>/
        hub.lock          locked with flock by the hub while it lives
        ranks.sock        unix stream on which the hub accepts ranks
        dash-<pid>.sock   ZeroMQ ipc on which it accepts dashboards
        view-<pid>.sock   the same for readers that may not change anything
        job.json          JobRecord
        hub.log           the hub's stderr
      changes.jsonl       changes to any job's settings, see change_log.py
      last_end.json       how the last job ended, see last_end.py
      black_boxes/        the last minutes of the last jobs, see recording/black_boxes.py

This module is imported in the training process.
"""

import fcntl
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from overlaptop.jobs.files import NotPrivateError, check_private, temporary_folder
from overlaptop.wire.protocol import JOB_KEY

LOCK_NAME = "hub.lock"
LOG_NAME = "hub.log"
RECORD_NAME = "job.json"
RANKS_NAME = "ranks.sock"
OUR_FILES = r"\A(hub\.lock|hub\.log|ranks\.sock|(dash|view)-\d+\.sock|job\.json(\.\d+)?)\Z"
_TRIED_BYTES = 4096
WAY_OUT = "make room, or set OVERLAPTOP_DIR to another directory"


class JobFolderError(Exception):
    """The socket directory, a job's folder or a socket cannot be used, or no hub started. One line."""


def base_dir(create: bool = True) -> Path:
    """Return the absolute path of the socket directory.

    Raises JobFolderError if it is not a private directory of ours, or cannot be made. With
    ``create=False``, a missing one is no error.
    """
    named = os.environ.get("OVERLAPTOP_DIR")
    path = Path(named or temporary_folder() / f"overlaptop-{os.geteuid()}").absolute()
    _check(path, create=create)
    return path


def job_dir(key: str, create: bool = False) -> Path:
    """Return the folder of a job, whether or not it exists. Raises JobFolderError as `base_dir` does."""
    if not re.match(JOB_KEY, key):
        raise JobFolderError(f"job key {key[:60]!r} is not 1 to 40 of the characters a-z, 0-9 and -")
    path = base_dir(create) / key
    _check(path, create=create)
    return path


def _check(path: Path, *, create: bool) -> None:
    """Raise JobFolderError unless a folder is private; unless it is made, a missing one is no error."""
    try:
        check_private(path, create=create)
    except NotPrivateError as refusal:
        raise JobFolderError(f"{refusal}; OVERLAPTOP_DIR can name another folder") from None
    except OSError as error:
        if create or not isinstance(error, FileNotFoundError):
            verb = "create" if create else "use"
            raise JobFolderError(f"cannot {verb} {path}: {error.strerror}: set OVERLAPTOP_DIR") from None


def job_keys() -> list[str]:
    """Return the keys of possible job folders. JobFolderError if the socket directory is not private."""
    try:
        return [path.name for path in base_dir(create=False).iterdir() if re.match(JOB_KEY, path.name)]
    except OSError:
        return []


def remove_job_files(folder: Path) -> None:
    """Empty and remove a job's folder, whose lock the caller holds. Other files in it, and it, stay."""
    names = [path.name for path in folder.iterdir() if re.match(OUR_FILES, path.name)]
    # The lock goes last: a hub that starts meanwhile waits for it, finds it removed, and starts again.
    for name in sorted(names, key=LOCK_NAME.__eq__):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def try_lock(folder: Path, create: bool) -> int | None:
    """Return an open descriptor that holds this folder's hub lock. None if another process holds it.

    The lock is released when the last copy of the descriptor is closed, however its process ended. Raises
    OSError if the lock file cannot be opened.
    """
    path = folder / LOCK_NAME
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file removed or replaced before it was locked protects nothing.
        if os.fstat(descriptor).st_ino == path.lstat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def check_writable(key: str) -> None:
    """Make the job's folder and write a file in it. Raises JobFolderError if that fails."""
    folder = job_dir(key, create=True)
    if why := _why_not_writable(folder):
        with suppress(OSError):
            folder.rmdir()
        raise JobFolderError(f"cannot write to {folder.parent}: {why}; {WAY_OUT}")


def why_not_writable() -> str:
    """Return why nothing can be written in the socket directory, as one line. Empty if something can.

    Raises JobFolderError as `base_dir` does.
    """
    path = base_dir(create=False)
    place = path if path.exists() else path.parent
    why = _why_not_writable(place)
    return why and f"cannot write to {place}: {why}, so no job that starts now can be seen: {WAY_OUT}"


def _why_not_writable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return ""
