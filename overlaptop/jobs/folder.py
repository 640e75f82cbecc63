"""A job's folder in the socket directory: where it is, what lies there, whose it is.

    $OVERLAPTOP_DIR, else <temporary directory>/overlaptop-<uid>     mode 0700, ours, not a link
      <job key>/
        hub.lock          held with flock by the hub for as long as it lives
        ranks.sock        unix stream, on which the hub takes ranks
        dash-<pid>.sock   ZeroMQ ipc, on which it takes dashboards
        view-<pid>.sock   the same for those who may change nothing
        job.json          JobRecord
        hub.log           the hub's stderr
        commands.msgpack  the commands that are under way, for a hub that takes this one's place
      changes.jsonl       what was changed of any job, see change_log.py
      last_end.json       how the last job ended, see last_end.py
      black_boxes/        the last minutes of the last jobs, see recording/black_boxes.py

This module is imported in the training process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from overlaptop.jobs.trusted_folders import (
    UntrustedFolderError,
    open_private,
    open_trusted,
    temporary_folder,
)
from overlaptop.wire.protocol import JOB_KEY

LOCK_NAME = "hub.lock"
LOG_NAME = "hub.log"
COMMANDS_NAME = "commands.msgpack"
RECORD_NAME = "job.json"
RANKS_NAME = "ranks.sock"
OUR_FILES = (
    r"\A(hub\.lock|hub\.log|ranks\.sock|(dash|view)-\d+\.sock"
    r"|(job\.json|commands\.msgpack)(\.\d+)?)\Z"
)


class JobFolderError(Exception):
    """The socket directory, a job's folder or a socket cannot be used, or no hub started; in one line."""


def check_key(key: str) -> str:
    """The key itself, if it may name a folder; JobFolderError otherwise."""
    if not re.match(JOB_KEY, key):
        raise JobFolderError(f"job key {key[:60]!r} is not 1 to 40 of the characters a-z, 0-9 and -")
    return key


def base_dir(create: bool = True) -> Path:
    """The socket directory, absolute.

    Raises JobFolderError when it is not a directory of ours that is closed to all others, when others could
    put another one in its place, or when it cannot be made. With ``create=False`` a directory that does
    not exist is no error.
    """
    named = os.environ.get("OVERLAPTOP_DIR")
    path = Path(named or temporary_folder() / f"overlaptop-{os.geteuid()}").absolute()
    _check_private(path, create=create)
    return path


def job_dir(key: str, create: bool = False) -> Path:
    """The folder of a job, whether or not it exists. JobFolderError as from :func:`base_dir`."""
    path = base_dir(create) / check_key(key)
    _check_private(path, create=create)
    return path


def _check_private(path: Path, *, create: bool) -> None:
    """JobFolderError unless a folder is ours, closed to all others, and nobody else can replace it.

    ``create`` makes it where there is none; else one that does not exist is no error. Raises OSError where
    there is no descriptor to look with, whatever the folder is.
    """
    try:
        above = open_trusted(path.parent)
        try:
            os.close(open_private(path, above, create=create))
        finally:
            os.close(above)
    except UntrustedFolderError as refusal:
        raise JobFolderError(f"{refusal}; OVERLAPTOP_DIR can name another folder") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        if create or not isinstance(error, FileNotFoundError):
            verb = "create" if create else "use"
            raise JobFolderError(f"cannot {verb} {path}: {error.strerror}: set OVERLAPTOP_DIR") from None


def job_keys() -> list[str]:
    """Of all folders that may be jobs'. JobFolderError where the socket directory is not to be trusted."""
    try:
        return [path.name for path in base_dir(create=False).iterdir() if re.match(JOB_KEY, path.name)]
    except OSError:
        return []


def remove_job_files(folder: Path) -> None:
    """Empties and removes a job's folder; the caller holds its lock. Files of others stay, and so does
    then the folder.
    """
    names = [path.name for path in folder.iterdir() if re.match(OUR_FILES, path.name)]
    # The lock goes last: a hub that starts meanwhile waits for it, finds it removed, and begins anew.
    for name in sorted(names, key=LOCK_NAME.__eq__):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def forget_under_way(folder: Path) -> None:
    """Removes what a hub kept there for the next one of its job: another job has the key now, as the one
    after it has where both meet at the same port. The caller holds the lock.
    """
    with suppress(OSError):
        (folder / COMMANDS_NAME).unlink()


def try_lock(folder: Path, create: bool) -> int | None:
    """An open descriptor that holds this folder's hub lock; None when another has it.

    The lock is free again as soon as the last copy of the descriptor is closed, however its process
    ended. Raises OSError when the lock file cannot be opened.
    """
    path = folder / LOCK_NAME
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file that was removed or replaced before it was locked guards nothing.
        if os.fstat(descriptor).st_ino == path.lstat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
