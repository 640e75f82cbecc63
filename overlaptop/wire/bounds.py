"""The types of message fields, each with bounds. The codec refuses a value out of bounds, both when sending
and when receiving, so no received value can break a screen.
"""

import re
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

MAX_INT64 = (1 << 63) - 1
MAX_UNIX_NS = 1 << 62  # The year 2116. The sum of a time and a duration is then an int64, too.
MAX_DURATION_NS = 30 * 24 * 3600 * 1_000_000_000  # 30 days: no step takes longer, and it fits on any screen
MAX_RANK = 1 << 20
"""Bounds rank numbers and world sizes, so that no message makes a dashboard draw 2**63 rows."""
MAX_RANKS = 4096  # Ranks in one list. Hubs accept no more, and dashboards ignore ranks with higher numbers.
MAX_TEXT_CHARS = 4096
MAX_AUTHOR_CHARS = 200
MAX_WORDS = 32
MAX_SPAN_NUMBERS = 8192  # Numbers in one lane of one StepDetail, two for each span

Int64 = Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT64)]
"""A number of things, bytes or bytes per second; the number of a step, a process or a NUMA node."""
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]  # The number of a rank, or a number of ranks
UnixNs = Annotated[int, Meta(ge=0, le=MAX_UNIX_NS)]
DurationNs = Annotated[int, Meta(ge=0, le=MAX_DURATION_NS)]
StepNs = Annotated[int, Meta(ge=1, le=MAX_DURATION_NS)]
"""Length of a whole step. Not 0, because shares divide by it."""
OffsetNs = Annotated[int, Meta(ge=-MAX_DURATION_NS, le=MAX_DURATION_NS)]
"""Time since a step's start, or since another nearby time. May be negative."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
MOST_CHANGE = 10.0
Change = Annotated[float, Meta(ge=-MOST_CHANGE, le=MOST_CHANGE)]
"""Relative change of a duration: 0.01 for 1 % longer."""
ExitCode = Annotated[int, Meta(ge=-128, le=255)]
"""A process's exit status, or minus the number of the signal that ended it."""
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
"""Longer text is cut when sending, and refused when receiving."""
Id = Annotated[str, Meta(pattern=r"\A[0-9a-z-]{8,40}\Z")]  # Id of a command
Author = Annotated[str, Meta(max_length=MAX_AUTHOR_CHARS)]
"""The sender's own description: ``user@host, pid 123``."""
Spans = Annotated[tuple[OffsetNs, ...], Meta(max_length=MAX_SPAN_NUMBERS)]
"""Starts and ends in turn: ``(start, end, start, end, ...)``."""
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_RANKS)]
Words = Annotated[tuple[Text, ...], Meta(max_length=MAX_WORDS)]


def one_of(words: Collection[str]) -> Meta:
    """Return the type of a text that must be one of these words."""
    return Meta(pattern=rf"\A({'|'.join(map(re.escape, words))})\Z")
