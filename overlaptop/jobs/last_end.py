"""How this user's last job on this machine ended: ``last_end.json`` in the socket directory, by its hub."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from overlaptop.jobs.files import read_regular, write_whole
from overlaptop.jobs.folder import JobFolderError, base_dir
from overlaptop.wire.bounds import MAX_RANKS, Text, UnixNs
from overlaptop.wire.messages import RankEnd

_NAME = "last_end.json"
_MOST_BYTES = 4 << 20


class LastEnd(msgspec.Struct, frozen=True):
    """The end of one node's part of a job."""

    script: Text
    ended_ns: UnixNs
    ends: Annotated[tuple[RankEnd, ...], Meta(max_length=MAX_RANKS)]
    job: Text = ""
    """The job's key, which the next job may reuse."""
    stopped_ns: UnixNs = 0
    """When the overlaptop that had started the job began to end it. 0 if it did not."""

    hung: bool = False
    """True if no step had ended for a while."""

    @property
    def stopped(self) -> bool:
        """Whether it did, and no rank had failed before."""
        return bool(self.stopped_ns) and not any(
            each.failed and each.at_ns < self.stopped_ns for each in self.ends
        )


def write(end: LastEnd) -> None:
    """Replace the previous end. Raises OSError or JobFolderError."""
    write_whole(base_dir(create=False) / _NAME, msgspec.json.encode(end))


def note_stop(job: str, stopped_ns: int) -> None:
    """Note that the overlaptop that had started this job ended it, unless it ended earlier. Raises OSError
    or JobFolderError.
    """
    if (known := read()) is not None and known.job == job and known.ended_ns >= stopped_ns:
        write_whole(
            base_dir(create=False) / _NAME, msgspec.json.encode(replace(known, stopped_ns=stopped_ns))
        )


def read() -> LastEnd | None:
    """Return the last end. None without a readable one.
    Fast if the file has not changed since the last call.
    """
    try:
        path = base_dir(create=False) / _NAME
        stat = path.lstat()
    except (OSError, JobFolderError):
        return None
    return _decoded(path, stat.st_mtime_ns, stat.st_ino, stat.st_size)


@lru_cache(maxsize=1)
def _decoded(path: Path, *_version: int) -> LastEnd | None:
    try:
        return msgspec.json.decode(read_regular(path, _MOST_BYTES), type=LastEnd)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: no UTF-8
        return None
