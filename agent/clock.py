"""The rank's clock: Unix time in ns that never steps backwards."""

import time

# Ranks of one node share the monotonic clock, so one offset gives Unix time. It is read once: an adjusted
# wall clock cannot change a step's length.
_UNIX_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Unix time in ns, monotonic within the process."""
    return time.monotonic_ns() + _UNIX_OFFSET_NS
