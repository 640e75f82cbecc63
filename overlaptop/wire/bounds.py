"""What the whole numbers of a message may be: an annotation names the kind, codec.py checks its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MAX_INT64 = (1 << 63) - 1
MAX_DURATION_NS = 30 * 24 * 3600 * 1_000_000_000
"""A month: no step takes longer, and any screen has room for it."""

Count = int
"""How many, how many bytes, how much a second; the number of a step, a process or a NUMA node."""
UnixNs = int
"""A moment."""
DurationNs = int
StepNs = int
"""How long a whole step took: parts of it are shares of this."""
OffsetNs = int
"""From a step's start, or from another moment near it, in either direction."""

BOUNDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "Count": (0, MAX_INT64),
        "UnixNs": (0, MAX_INT64),
        "DurationNs": (0, MAX_DURATION_NS),
        "StepNs": (1, MAX_DURATION_NS),
        "OffsetNs": (-MAX_DURATION_NS, MAX_DURATION_NS),
    }
)
"""Name of the annotation -> the least and the most; both belong to it."""
