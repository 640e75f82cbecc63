"""How long a collective takes by its size: ``T = alpha + bytes / beta``, for one op in one group.

Fitted from collectives that ran, each by the *shortest* of its durations over the ranks: the others began
earlier and waited, and waiting is not the link's doing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overlaptop.timeline.collectives import link_bytes

NEWEST = 1_000
"""Observations that a fit looks at: all pairs of them are compared."""
FEWEST = 10
"""With fewer, what two parameters leave is too little to tell the noise from."""
LEAST_SPREAD = 2.0
"""The largest size over the smallest: where they lie closer, alpha is what noise or a curve makes it."""
LARGEST_ERROR = 1 / 3
"""Of beta: where it is less certain, its sign is hardly known. Flat times pass once in a hundred."""
_FLAT = "the times do not grow with the size by more than chance would have it"
_MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""
_MEDIAN_TO_MEAN = 1.2533
"""How much more a median varies than a mean would, of normal noise."""
LARGEST = 2**53
"""In ns 104 days, in bytes 8 PiB: up to here a float64 counts each, and no sum of a step overflows."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The time of a collective: a fixed part, and a part that grows with its bytes."""

    alpha_ns: float
    """What it takes however small it is: launches, and the way round all ranks."""
    beta_bytes_per_s: float
    """Bytes of the tensor a second (nccl-tests: algorithm bandwidth); `math.inf`: only alpha counts."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha_ns < LARGEST:
            raise ValueError(f"alpha must be from 0 to 104 days, not {self.alpha_ns} ns")
        if not self.beta_bytes_per_s > 0:
            raise ValueError(f"beta must be above 0, not {self.beta_bytes_per_s} bytes/s")

    @classmethod
    def of_all_reduce(cls, ranks: int, alpha_ns: float, bus_bytes_per_s: float) -> AlphaBeta:
        """The model of an all-reduce by its bus bandwidth, as nccl-tests defines it.

        That is what a rank sends a second: ``2 (n-1)/n`` of the tensor's bytes among n ranks. So beta is
        the bus bandwidth over that factor.

        Raises:
            ValueError: fewer than two ranks, or a figure out of range.
        """
        if ranks < 2:
            raise ValueError(f"an all-reduce needs two ranks or more, not {ranks}")
        sent = link_bytes("allreduce_", ranks, ranks)  # of one byte a rank: n times the factor, exactly
        assert sent is not None
        return cls(alpha_ns, bus_bytes_per_s * ranks / sent.tx)

    @property
    def half_speed_bytes(self) -> float:
        """``alpha * beta``: the size at which half of the time is alpha."""
        return self.alpha_ns * self.beta_bytes_per_s / 1e9 if self.alpha_ns else 0.0

    def duration_ns(self, size_bytes: ArrayLike) -> NDArray[np.int64]:
        """Whole ns for each of the sizes, in their shape.

        Raises:
            ValueError: a size below 0, or a time of more than 104 days in all.
        """
        sizes = np.asarray(size_bytes, dtype=np.float64)
        if sizes.size and not sizes.min() >= 0:
            raise ValueError(f"a size cannot be {sizes.min():g} bytes")
        with np.errstate(over="ignore"):
            times_ns = self.alpha_ns + sizes / self.beta_bytes_per_s * 1e9
        if not times_ns.sum() < LARGEST:
            raise ValueError("the communication would take more than 104 days")
        return np.rint(times_ns).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Fit:
    """A model with what it was fitted from, and how well it does there."""

    model: AlphaBeta
    observations: int
    smallest_bytes: int
    largest_bytes: int
    """Beyond these sizes the model is a guess: NCCL changes its protocol with the size."""
    alpha_error_ns: float
    beta_error: float
    """Standard errors, of a fit to so many observations that scatter so; beta's is a fraction of it,
    LARGEST_ERROR at most."""
    residual: float
    """The median of ``|observed / predicted - 1|`` over the observations: noise and misfit together."""
    worst_residual: float
    """The same of the size whose median time the model misses most: misfit, mostly."""


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why there is no model, and what is known without one."""

    reason: str
    """One line without a full stop."""
    observations: int
    alpha_at_most_ns: float | None = None
    """No collective can have a fixed part longer than the typical time of the quickest size."""
    beta_at_least_bytes_per_s: float | None = None
    """The best that was reached, alpha included: less alpha, it took less time still."""


class Observation(NamedTuple):
    """One collective that ran on all ranks of its group."""

    op: str
    group: str
    size_bytes: int
    """Of the tensor: the larger of input and output."""
    durations_ns: tuple[int, ...]
    """On each rank of the group. Where one is missing, it may be the one that did not wait: leave such a
    collective out."""


def fit_groups(observations: Iterable[Observation]) -> dict[tuple[str, str], Fit | NoFit]:
    """A model, or the reason why there is none, for each (op, group).

    What moved nothing (a barrier) or was not timed shows nothing of a link, and does not count.
    """
    seen: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for each in observations:
        shortest_ns = min(each.durations_ns, default=0)
        if each.size_bytes > 0 and shortest_ns > 0:
            seen[each.op, each.group].append((each.size_bytes, shortest_ns))
    return {key: fit(*zip(*pairs, strict=True)) for key, pairs in seen.items()}


def fit(size_bytes: ArrayLike, duration_ns: ArrayLike) -> Fit | NoFit:
    """The model of n collectives of one op in one group, oldest first: shapes (n,) and (n,).

    The times of one size are taken by their median, and the line through these medians is Theil and Sen's,
    weighted: the one for which the residuals differ least among each other,
    ``sum of w_i w_j |r_i - r_j|``. A size weighs ``sqrt(observations) / time``, the inverse of what its
    median is off by chance, because jitter grows with the time: else the large sizes alone would set alpha.
    A quarter of the collectives of each size may be far off and hardly move it. Turned down: least squares,
    which one stalled step moves; and the lower envelope, which is the time of a link at its best, while
    a step's time is the sum of what its collectives usually take.

    Raises:
        ValueError: not as many times as sizes, or one of them not above 0, or beyond 8 PiB or 104 days.
    """
    sizes, times = np.asarray(size_bytes, dtype=np.float64), np.asarray(duration_ns, dtype=np.float64)
    if sizes.ndim != 1 or sizes.shape != times.shape:
        raise ValueError(f"as many times as sizes, please: shapes {sizes.shape} and {times.shape}")
    if not ((sizes > 0) & (sizes < LARGEST) & (times > 0) & (times < LARGEST)).all():
        raise ValueError("sizes and times must be above 0, and at most 8 PiB and 104 days")
    sizes, times = sizes[-NEWEST:], times[-NEWEST:]
    if len(sizes) == 0:
        return NoFit("no collective with its bytes was seen", 0)
    order = np.lexsort((times, sizes))
    sizes, times = sizes[order], times[order]

    distinct, counts = np.unique(sizes, return_counts=True)
    medians = np.array([np.median(each) for each in np.split(times, np.cumsum(counts)[:-1])])
    unknown = NoFit(
        _objection(len(sizes), distinct),
        len(sizes),
        alpha_at_most_ns=float(medians.min()),
        beta_at_least_bytes_per_s=float((distinct / medians).max() * 1e9),
    )
    if unknown.reason:
        return unknown
    weights = np.sqrt(counts) / medians
    slope_ns = _slope(distinct, medians, weights)
    if slope_ns <= 0:
        return replace(unknown, reason=_FLAT)
    alpha_ns = _weighted_median(medians - slope_ns * distinct, weights)
    if alpha_ns < 0:
        # The best line with alpha >= 0 goes through the origin: the least sum of w |t - slope x|.
        alpha_ns, slope_ns = 0.0, _weighted_median(medians / distinct, weights * distinct)
    predicted = alpha_ns + slope_ns * sizes
    alpha_error_ns, slope_error_ns = _errors(sizes, times, predicted)
    if slope_error_ns > LARGEST_ERROR * slope_ns:
        return replace(unknown, reason=_FLAT)
    return Fit(
        model=AlphaBeta(alpha_ns, 1e9 / slope_ns),
        observations=len(sizes),
        smallest_bytes=int(distinct[0]),
        largest_bytes=int(distinct[-1]),
        alpha_error_ns=alpha_error_ns,
        beta_error=slope_error_ns / slope_ns,
        residual=float(np.median(np.abs(times / predicted - 1))),
        worst_residual=float(np.abs(medians / (alpha_ns + slope_ns * distinct) - 1).max()),
    )


def _objection(seen: int, distinct: NDArray[np.float64]) -> str:
    """Why alpha and beta cannot be told apart with these sizes; empty: they can."""
    if seen < FEWEST:
        return f"{seen} collectives were seen, at least {FEWEST} are needed"
    if len(distinct) == 1:
        return f"all collectives have one size, {int(distinct[0])} bytes"
    if distinct[-1] < LEAST_SPREAD * distinct[0]:
        return (
            f"the sizes are too alike, {int(distinct[0])} to {int(distinct[-1])} bytes: "
            f"the largest must be at least {LEAST_SPREAD:g} times the smallest"
        )
    return ""


def _errors(
    sizes: NDArray[np.float64], times: NDArray[np.float64], predicted: NDArray[np.float64]
) -> tuple[float, float]:
    """Standard errors of alpha and of the slope, ns and ns a byte, for noise in proportion to the time.

    Those of weighted least squares, with the noise from the median residual, which outliers do not move,
    and a little more for a fit by medians.
    """
    noise = _MAD_TO_SIGMA * float(np.median(np.abs(times / predicted - 1)))
    noise *= _MEDIAN_TO_MEAN * (len(sizes) / (len(sizes) - 2)) ** 0.5  # two parameters were fitted
    weights = predicted**-2
    center = float(np.average(sizes, weights=weights))
    slope_variance = 1 / float((weights * (sizes - center) ** 2).sum())
    alpha_variance = 1 / float(weights.sum()) + center**2 * slope_variance
    return noise * alpha_variance**0.5, noise * slope_variance**0.5


def _slope(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The weighted median of the slopes between all pairs: the least ``sum of w_i w_j |r_i - r_j|``."""
    i, j = np.triu_indices(len(x), k=1)
    run = x[j] - x[i]
    return _weighted_median((y[j] - y[i]) / run, weights[i] * weights[j] * run)


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The value with half of the weight on each side; the middle of two where they share that place."""
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    half = reached[-1] / 2
    at = int(np.searchsorted(reached, half))
    above = at + 1 if reached[at] == half else at
    return float((values[at] + values[above]) / 2)
