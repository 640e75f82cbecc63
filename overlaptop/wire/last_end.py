"""How this user's last job on this machine ended: ``last_end.json`` in the socket directory, written by its
hub, or by a rank that failed before there was one, for those who look later.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, Rank, Text, UnixNs
from overlaptop.wire.endpoints import EndpointError, base_dir, read_regular, write_whole
from overlaptop.wire.messages import RankEnd

_NAME = "last_end.json"
_MOST_BYTES = 4 << 20


class LastEnd(msgspec.Struct, frozen=True):
    """The end of one node's part of a job."""

    script: Text
    ended_ns: UnixNs
    ranks: Rank
    """How many of them the hub has seen."""
    ends: Annotated[tuple[RankEnd, ...], Meta(max_length=MAX_RANKS)]


def write(end: LastEnd) -> None:
    """In place of the one before. Raises OSError or EndpointError."""
    write_whole(base_dir(create=False) / _NAME, msgspec.json.encode(end))


def read() -> LastEnd | None:
    """None: there is none that can be understood."""
    try:
        return msgspec.json.decode(read_regular(base_dir(create=False) / _NAME, _MOST_BYTES), type=LastEnd)
    except (OSError, msgspec.MsgspecError, RecursionError, EndpointError):
        return None
