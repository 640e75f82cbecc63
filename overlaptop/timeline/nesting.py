"""Calls within calls: which of them a thread is in at each time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def innermost(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each of n calls of one thread was the innermost one.

    Shape (m, 3): start and end in ns, and the call's index; m is below 2 n. They are in order of time, do
    not overlap, and together are all the time in which there was a call. A call that outlasts the one it
    began in is cut off there.
    """
    pieces: list[tuple[int, int, int]] = []
    around: list[tuple[int, int]] = []  # ends and indices of the calls that go on, the innermost last
    reached = 0

    def reach(to: int) -> None:
        nonlocal reached
        if to > reached:
            pieces.append((reached, to, around[-1][1]))
            reached = to

    starts, ends = start_ns.tolist(), end_ns.tolist()
    # Of calls that begin together the longest is around the others.
    for call in np.lexsort((-end_ns, start_ns)).tolist():
        start, end = starts[call], ends[call]
        while around and around[-1][0] <= start:
            reach(around[-1][0])
            around.pop()
        if around:
            reach(start)
            end = min(end, around[-1][0])
        else:
            reached = start
        around.append((end, call))
    while around:
        reach(around[-1][0])
        around.pop()
    return np.array(pieces, dtype=np.int64).reshape(-1, 3)
