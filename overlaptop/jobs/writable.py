"""Checks whether a new job will be visible: its hub must be able to write to the socket directory.

Only the standard library: this module is imported in the training process.
"""

import os
from contextlib import suppress

from overlaptop.jobs.folder import COMMANDS_NAME, JobFolderError, base_dir, job_dir

_TRIED_BYTES = 4096
WAY_OUT = "make room, or set OVERLAPTOP_DIR to another directory"


def check(key: str) -> None:
    """Make the job's folder and write a file in it. Raises JobFolderError if that fails."""
    folder = job_dir(key, create=True)
    file = folder / f"{COMMANDS_NAME}.{os.getpid()}"
    try:
        try:
            file.write_bytes(bytes(_TRIED_BYTES))
        finally:
            file.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise JobFolderError(f"cannot write to {folder.parent}: {error.strerror}; {WAY_OUT}") from None


def why_not() -> str:
    """Return why nothing can be written there, as one line. Empty if no reason is found without writing.

    Raises JobFolderError as `base_dir` does.
    """
    path = base_dir(create=False)
    place = path if path.exists() else path.parent
    try:
        why = _fault(os.statvfs(place))
    except OSError as error:
        why = f"cannot be used ({error.strerror})"
    if not why and not os.access(place, os.W_OK | os.X_OK):
        why = "cannot be written to"
    return why and f"{place} {why}, so no job that starts now can be seen: {WAY_OUT}"


def _fault(space: os.statvfs_result) -> str:
    """Return why nothing can be written to a file system, as words after its name. Empty if it can."""
    if space.f_flag & os.ST_RDONLY:
        return "can only be read"
    # Some file systems have no limit on the number of files and report 0 of 0.
    if not space.f_bavail or (space.f_files and not space.f_favail):
        return "is full"
    return ""
