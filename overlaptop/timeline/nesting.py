"""Nested calls: finds the innermost call of a thread at each time."""

import numpy as np
from numpy.typing import NDArray


def innermost(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each of n calls of one thread was the innermost one.

    Shape (m, 3): start and end in ns, and the call's index; m is below 2 n. The rows are in order of time,
    do not overlap, and together cover all time with any call. A call that outlasts the call it began in is
    cut off at that call's end.
    """
    pieces: list[tuple[int, int, int]] = []
    around: list[tuple[int, int]] = []  # ends and indices of the open calls, the innermost last
    reached = 0

    def reach(to: int) -> None:
        nonlocal reached
        if to > reached:
            pieces.append((reached, to, around[-1][1]))
            reached = to

    starts, ends = start_ns.tolist(), end_ns.tolist()
    # If several calls begin together, the longest is the outermost.
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
