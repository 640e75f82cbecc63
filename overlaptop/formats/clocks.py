"""Estimates clock offsets between ranks' traces from the ends of their common collectives.

No rank leaves an all-reduce, an all-gather or a reduce-scatter long before the others, however late one of
them came. So if the ends differ by about the same amount in all of them, the clocks differ by that amount.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlaptop.timeline import collectives as ops
from overlaptop.timeline.arrivals import Collective

LEAST_OFFSET_NS = 50_000
"""On one clock, ends differ by up to 44 µs in the median, but not by that much in every collective."""
LEAST_COLLECTIVES = 3
"""With fewer, one collective with an odd end would look like an offset."""
CERTAIN = 2
"""An offset is corrected if it is at least this many times its possible error."""
LEAST_STEADY_NS, STEADY = 10_000, 5
"""A smaller offset is corrected if it is at least STEADY times its possible error."""
_TOGETHER = frozenset(("allreduce", "allgather", "reducescatter", "barrier"))


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clock relative to the first rank that it shares collectives with."""

    offset_ns: float = 0.0
    """How far it is ahead at `at_ns`."""
    drift: float = 0.0
    """Drift in ns per ns."""
    at_ns: int = 0
    error_ns: int = 0
    """Possible error of an offset: twice the deviation that nine in ten ends stay within."""

    def ahead_ns(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how far it is ahead at these times, shape (n,)."""
        ahead_ns: NDArray[np.int64] = np.rint(self.offset_ns + self.drift * (times_ns - self.at_ns)).astype(
            np.int64
        )
        return ahead_ns


def estimate(found: Iterable[Collective], ranks: Sequence[int]) -> Mapping[int, Clock]:
    """Estimate the clocks of ranks with an offset; others have no entry. Offsets and errors add up along
    chains of ranks with common collectives.
    """
    ends: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in found:
        if all(ops.kind_of(part) in _TOGETHER for part in each.op.split("+")):
            (first, (_, first_ns)), *others = each.spans.items()
            for rank, (_, end_ns) in others:
                ends[first, rank].append((end_ns, end_ns - first_ns))
    pairs = {pair: _clock(np.array(of)) for pair, of in ends.items() if len(of) >= LEAST_COLLECTIVES}
    clocks: dict[int, Clock] = {}
    for rank in sorted(ranks):
        if rank not in clocks:
            clocks[rank] = Clock()
            _follow(rank, pairs, clocks)
    return {rank: clock for rank, clock in clocks.items() if _is_apart(clock)}


def _is_apart(clock: Clock) -> bool:
    ahead_ns, error_ns = abs(clock.offset_ns), clock.error_ns
    large = ahead_ns > max(LEAST_OFFSET_NS, CERTAIN * error_ns)
    return large or ahead_ns > max(LEAST_STEADY_NS, STEADY * error_ns)


def _follow(root: int, pairs: Mapping[tuple[int, int], Clock], clocks: dict[int, Clock]) -> None:
    """Add the clocks of all ranks that share collectives with `root`, directly or through others."""
    reached = [root]
    for known in reached:
        for (first, second), pair in pairs.items():
            if known not in (first, second):
                continue
            other, sign = (second, 1) if known == first else (first, -1)
            if other not in clocks:
                base = clocks[known]
                at_ns = pair.at_ns
                clocks[other] = Clock(
                    base.offset_ns + base.drift * (at_ns - base.at_ns) + sign * pair.offset_ns,
                    base.drift + sign * pair.drift,
                    at_ns,
                    base.error_ns + pair.error_ns,
                )
                reached.append(other)


def _clock(ends: NDArray[np.int64]) -> Clock:
    """Estimate a clock from shape (n, 2): a time, and how far the one clock is ahead of the other then."""
    times_ns, ahead_ns = ends[:, 0].astype(np.float64), ends[:, 1].astype(np.float64)
    at_ns = int(np.median(ends[:, 0]))
    since_ns = times_ns - at_ns
    plain = Clock(float(np.median(ahead_ns)), 0.0, at_ns, _spread_ns(ahead_ns - np.median(ahead_ns)))
    order = np.argsort(since_ns)
    third = len(order) // 3
    if third < 2:
        return plain
    early, late = order[:third], order[-third:]
    apart_ns = float(np.median(since_ns[late]) - np.median(since_ns[early]))
    if apart_ns <= 0:
        return plain
    drift = float(np.median(ahead_ns[late]) - np.median(ahead_ns[early])) / apart_ns
    left_ns = ahead_ns - drift * since_ns
    offset_ns = float(np.median(left_ns))
    drifting = Clock(offset_ns, drift, at_ns, _spread_ns(left_ns - offset_ns))
    return drifting if drifting.error_ns * 2 < plain.error_ns else plain


def _spread_ns(left_ns: NDArray[np.float64]) -> int:
    return int(np.ceil(2 * np.percentile(np.abs(left_ns), 90)))
