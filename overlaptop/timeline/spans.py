"""Spans: sets of half-open intervals ``[start, end)`` in whole nanoseconds, and set algebra on them.

A set of spans is an int64 array of shape (n, 2) in **canonical form**: sorted, disjoint, not touching
(touching intervals are one) and without empty intervals, so two equal sets are two equal arrays.
`from_pairs` and `from_bounds` make that form; every other function expects and returns it. Times may lie
anywhere within ±2**62 ns (as Unix time, until the year 2116). Nothing is rounded, and floats are refused
(TypeError) because a float64 cannot hold today's Unix time to the nanosecond. Input of another shape is a
ValueError. Every function is O(n log n) or better and vectorised.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Spans: TypeAlias = NDArray[np.int64]  # Shape (n, 2), C-contiguous, canonical (see the module)

_TIME_MIN = np.iinfo(np.int64).min
_TIME_MAX = np.iinfo(np.int64).max
FEW = 64  # Intervals of both sets together, up to which a loop computes an intersection faster than numpy


def empty() -> Spans:
    """The empty set: shape (0, 2)."""
    return np.empty((0, 2), dtype=np.int64)


def from_pairs(pairs: ArrayLike) -> Spans:
    """Canonical spans from (start, end) pairs in any order; empty and inverted pairs are dropped."""
    array = _whole_ns(pairs)
    if array.size == 0:
        return empty()
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"spans are (start, end) pairs, shape (n, 2), not {array.shape}")
    return from_bounds(array[:, 0], array[:, 1])


def from_bounds(starts_ns: ArrayLike, ends_ns: ArrayLike) -> Spans:
    """Canonical spans from n starts and n ends in any order; empty and inverted intervals are dropped."""
    starts, ends = _whole_ns(starts_ns), _whole_ns(ends_ns)
    if starts.ndim != 1 or starts.shape != ends.shape:
        raise ValueError(f"as many starts as ends, please: shapes {starts.shape} and {ends.shape}")
    if bool((starts < ends).all()) and bool((ends[:-1] < starts[1:]).all()):
        return _side_by_side(starts, ends)

    not_empty = starts < ends
    starts, ends = starts[not_empty], ends[not_empty]
    if starts.size == 0:
        return empty()
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reached = np.maximum.accumulate(ends[order])
    opens = np.append(True, starts[1:] > reached[:-1])
    closes = np.append(opens[1:], True)
    return _side_by_side(starts[opens], reached[closes])


def union(*spans: Spans) -> Spans:
    some = [each for each in spans if len(each)]
    if len(some) < 2:
        return some[0].copy() if some else empty()
    return from_pairs(np.concatenate(some))


def intersection(a: Spans, b: Spans) -> Spans:
    if len(a) == 0 or len(b) == 0:
        return empty()
    if len(a) + len(b) <= FEW:
        return _intersection_of_few(a.tolist(), b.tolist())
    # The intervals of b that meet one interval of a are a contiguous range, found by bisection. There are
    # at most len(a) + len(b) such pairs. Their common parts are already in canonical form, because a gap of
    # a or of b lies between two neighbours.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="left")
    met = np.maximum(stop - first, 0)
    in_a = np.repeat(np.arange(len(a)), met)
    nth = np.arange(len(in_a)) - np.repeat(np.cumsum(met) - met, met)
    in_b = np.repeat(first, met) + nth
    return _side_by_side(np.maximum(a[in_a, 0], b[in_b, 0]), np.minimum(a[in_a, 1], b[in_b, 1]))


def _intersection_of_few(a: list[list[int]], b: list[list[int]]) -> Spans:
    shared = []
    at_a = at_b = 0
    while at_a < len(a) and at_b < len(b):
        (start_a, end_a), (start_b, end_b) = a[at_a], b[at_b]
        start = start_a if start_a > start_b else start_b  # max() and min() would take half of the time
        end = end_a if end_a < end_b else end_b
        if start < end:
            shared.append((start, end))
        if end_a < end_b:
            at_a += 1
        else:
            at_b += 1
    return np.array(shared, dtype=np.int64) if shared else empty()


def difference(a: Spans, b: Spans) -> Spans:
    if len(a) == 0 or len(b) == 0:
        return a.copy()
    around_b = np.empty((len(b) + 1, 2), dtype=np.int64)
    around_b[0, 0], around_b[-1, 1] = _TIME_MIN, _TIME_MAX
    around_b[1:, 0], around_b[:-1, 1] = b[:, 1], b[:, 0]
    return intersection(a, around_b)


def clip(a: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return a copy of the part of `a` within ``[start_ns, end_ns)``."""
    if end_ns <= start_ns:
        return empty()
    first = np.searchsorted(a[:, 1], start_ns, side="right")
    stop = np.searchsorted(a[:, 0], end_ns, side="left")
    clipped = a[first:stop].copy()
    if len(clipped):
        clipped[0, 0] = max(clipped[0, 0], start_ns)
        clipped[-1, 1] = min(clipped[-1, 1], end_ns)
    return clipped


def length_ns(a: Spans) -> int:
    return int((a[:, 1] - a[:, 0]).sum())


def lengths_within(a: Spans, starts_ns: ArrayLike, ends_ns: ArrayLike) -> NDArray[np.int64]:
    """Return the length in ns of `a` in each of n intervals, which may overlap. Shape (n,)."""
    starts, ends = _whole_ns(starts_ns), _whole_ns(ends_ns)
    if len(a) == 0:
        return np.zeros(len(starts), dtype=np.int64)
    lengths_before = np.append(0, np.cumsum(a[:, 1] - a[:, 0]))

    def length_until(times: NDArray[np.int64]) -> NDArray[np.int64]:
        begun = np.searchsorted(a[:, 0], times)
        ahead = np.maximum(0, a[np.maximum(begun - 1, 0), 1] - times)
        until: NDArray[np.int64] = np.where(begun, lengths_before[begun] - ahead, 0)
        return until

    lengths: NDArray[np.int64] = np.maximum(0, length_until(ends) - length_until(starts))
    return lengths


def coalesce(a: Spans, max_segments: int) -> Spans:
    """Return at most `max_segments` intervals, 1 or more, that cover `a`, by closing the smallest gaps
    first, the later one of equals. For drawing and for messages of bounded size, not for arithmetic.
    """
    if max_segments < 1:
        raise ValueError(f"max_segments must be at least 1, not {max_segments}")
    if len(a) <= max_segments:
        return a.copy()
    gaps_ns = a[1:, 0] - a[:-1, 1]
    kept = np.sort(np.argsort(-gaps_ns, kind="stable")[: max_segments - 1])
    return _side_by_side(np.append(a[0, 0], a[kept + 1, 0]), np.append(a[kept, 1], a[-1, 1]))


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


def flatten(a: Spans) -> tuple[int, ...]:
    """Return ``(start, end, start, end, ...)`` as Python ints, the form in messages."""
    return tuple(a.ravel().tolist())


def unflatten(flat: Sequence[int]) -> Spans:
    """Return canonical spans from the output of `flatten`."""
    return from_pairs(np.asarray(flat).reshape(-1, 2))


def _whole_ns(times: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(times)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"times are whole nanoseconds, not {array.dtype}")
    return array.astype(np.int64, copy=False)


def _side_by_side(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    spans = np.empty((len(starts), 2), dtype=np.int64)
    spans[:, 0] = starts
    spans[:, 1] = ends
    return spans
