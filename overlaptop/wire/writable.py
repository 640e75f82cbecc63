"""Whether a job that starts now can be seen: its hub has to write to the socket directory.

Only the standard library: this module is imported in the training process.
"""

from __future__ import annotations

import os
from contextlib import suppress

from overlaptop.wire import endpoints
from overlaptop.wire.endpoints import EndpointError

_TRIED_BYTES = 4096
_WAY_OUT = "make room, or set OVERLAPTOP_DIR to another directory"


def check(key: str) -> None:
    """Make the job's folder and write a file in it. Raises EndpointError where that cannot be."""
    folder = endpoints.job_dir(key, create=True)
    file = folder / f"{endpoints.COMMANDS_NAME}.{os.getpid()}"
    try:
        try:
            file.write_bytes(bytes(_TRIED_BYTES))
        finally:
            file.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise EndpointError(f"cannot write to {folder.parent}: {error.strerror}; {_WAY_OUT}") from None


def why_not() -> str:
    """Why nothing can be written there, as a whole line; empty: it can, by all that can be told unwritten.

    Raises EndpointError as `base_dir` does.
    """
    path = endpoints.base_dir(create=False)
    place = path if path.exists() else path.parent
    try:
        space = os.statvfs(place)
    except OSError as error:
        why = f"cannot be used ({error.strerror})"
    else:
        if space.f_flag & os.ST_RDONLY:
            why = "can only be read"
        elif not os.access(place, os.W_OK | os.X_OK):
            why = "cannot be written to"
        elif not space.f_bavail or (space.f_files and not space.f_favail):  # some say 0 files of 0
            why = "is full"
        else:
            return ""
    return f"{place} {why}, so no job that starts now can be seen: {_WAY_OUT}"
