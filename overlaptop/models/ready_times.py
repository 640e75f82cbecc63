"""When gradients are ready along backward, from when their buckets started. Pure.

A bucket starts when its last gradient is ready, unless the one before it still runs: then it starts later,
and its start only bounds when the gradient was ready at the latest. Between what is known, gradients are
taken to become ready evenly, by their bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Ready(NamedTuple):
    """What one bucket's start shows."""

    share: float
    """Of all gradients' bytes, those up to and with this bucket: above 0, at most 1."""
    at: float
    """When it started, as a share of backward: 0 or more."""
    exact: bool
    """It started as soon as it was ready; else that was then or earlier."""


def curve(seen: Iterable[Ready]) -> tuple[Floats, Floats]:
    """Shares of the bytes, rising from 0 to 1, and the shares of backward at which they are ready, never
    falling: shapes (k,) and (k,).

    Of several starts of one share the median counts. Where starts contradict each other, which noise makes
    them do, their mean is taken (the monotone curve with the least squares).
    """
    exact: defaultdict[float, list[float]] = defaultdict(list)
    latest: defaultdict[float, list[float]] = defaultdict(list)
    for each in seen:
        (exact if each.exact else latest)[each.share].append(min(max(each.at, 0.0), 1.0))
    known = {share: float(np.median(times)) for share, times in exact.items()}
    ends = {0.0: 0.0, 1.0: 1.0} | known
    shares = np.array(sorted(ends))
    times = _monotone(np.array([ends[share] for share in shares]))
    # A start that had to wait moves the curve only where it lies before what the others make of it.
    bounds = {share: float(np.median(at)) for share, at in latest.items() if share not in known}
    between = {share: min(at, float(np.interp(share, shares, times))) for share, at in bounds.items()}
    knots = dict(zip(shares.tolist(), times.tolist(), strict=True)) | between
    shares = np.array(sorted(knots))
    return shares, _monotone(np.array([knots[share] for share in shares]))


def _monotone(values: Floats) -> Floats:
    """The closest never falling series: neighbours that fall are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean, count = (before * members + mean * count) / (members + count), members + count
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])
