"""How this user's last job on this machine ended: ``last_end.json`` in the socket directory, by its hub."""

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
    job: Text = ""  # The job's key, which the next job may reuse
    stopped_ns: UnixNs = 0  # When the overlaptop that had started the job began to end it. 0 if it did not.
    hung: bool = False  # True if no step had ended for a while

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
    """Note that overlaptop itself ended this job, unless it ended earlier. Raises as `write`."""
    if (known := read()) is not None and known.job == job and known.ended_ns >= stopped_ns:
        write(replace(known, stopped_ns=stopped_ns))


def read() -> LastEnd | None:
    """Return the last end. None without a readable one."""
    try:
        data = read_regular(base_dir(create=False) / _NAME, _MOST_BYTES)
        return msgspec.json.decode(data, type=LastEnd)
    # ValueError: no UTF-8
    except (OSError, JobFolderError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
