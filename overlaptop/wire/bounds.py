"""What a field of a message may be: kinds of numbers, texts and lists, each with its bounds.

A value outside its kind's bounds is refused by the codec, on the way out and on the way in, so that no
value that travels can end a screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

MAX_INT64 = (1 << 63) - 1
MAX_DURATION_NS = 30 * 24 * 3600 * 1_000_000_000
"""A month: no step takes longer, and any screen has room for it."""
MAX_RANK = 1 << 20
"""Bounds rank numbers and world sizes, so that nobody makes a dashboard draw 2**63 rows."""
MAX_RANKS = 4096
"""Of one list; a hub takes no more, and a dashboard ignores messages of ranks with higher numbers."""
MAX_TEXT_CHARS = 4096
MAX_AUTHOR_CHARS = 200
MAX_WORDS = 32
MAX_SPAN_NUMBERS = 8192
"""Of one lane of one StepDetail: half as many spans."""

Int64 = Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT64)]
"""How many, how many bytes, how much a second; the number of a step, a process or a NUMA node."""
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
"""The number of a rank, or how many there are."""
UnixNs = Annotated[int, Meta(ge=0, le=MAX_INT64)]
"""A moment."""
DurationNs = Annotated[int, Meta(ge=0, le=MAX_DURATION_NS)]
StepNs = Annotated[int, Meta(ge=1, le=MAX_DURATION_NS)]
"""How long a whole step took: parts of it are shares of this."""
OffsetNs = Annotated[int, Meta(ge=-MAX_DURATION_NS, le=MAX_DURATION_NS)]
"""From a step's start, or from another moment near it, in either direction."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
MOST_CHANGE = 10.0
Change = Annotated[float, Meta(ge=-MOST_CHANGE, le=MOST_CHANGE)]
"""By how much something is longer, as a share of what it was: 0.01 for 1 %."""

ExitCode = Annotated[int, Meta(ge=-128, le=255)]
"""A process's exit status, or less than 0: the number of the signal that ended it."""

Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
"""What is longer is clipped on the way out, and refused on the way in."""

Id = Annotated[str, Meta(pattern=r"\A[0-9a-z-]{8,40}\Z")]
"""Of a command."""
Author = Annotated[str, Meta(max_length=MAX_AUTHOR_CHARS)]
"""Who asks, as they say themselves: ``user@host, pid 123``."""

Spans = Annotated[tuple[OffsetNs, ...], Meta(max_length=MAX_SPAN_NUMBERS)]
"""Starts and ends, one after the other: ``(start, end, start, end, ...)``."""
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_RANKS)]
Words = Annotated[tuple[Text, ...], Meta(max_length=MAX_WORDS)]


def one_of(words: Collection[str]) -> Meta:
    """For a text that is one of these words."""
    return Meta(pattern=rf"\A({'|'.join(map(re.escape, words))})\Z")
