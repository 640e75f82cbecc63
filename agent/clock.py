"""The rank's clock: Unix time in ns that never steps backwards."""

from __future__ import annotations

import time

# Ranks of one node read the same monotonic clock, so the offset is all that Unix time adds; taken once,
# so that an adjustment of the wall clock cannot tear a step apart.
_UNIX_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Unix time in ns, monotonic within the process."""
    return time.monotonic_ns() + _UNIX_OFFSET_NS
