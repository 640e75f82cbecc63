"""Averages that are safe in the training process. The module `statistics` imports others whose names may
clash with files of the script.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

MAD_TO_SIGMA = 1.4826  # Ratio of standard deviation to median absolute deviation for normal noise


def median(values: Collection[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of the other values. ``ordered``: two values or more, ascending, one of them
    ``value``.
    """
    at, middle = bisect_left(ordered, value), (len(ordered) - 1) // 2
    low, high = middle - (len(ordered) % 2), middle
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def sigma(values: Collection[float]) -> float:
    """Return a standard deviation robust to outliers, from the median absolute deviation."""
    center = median(values)
    return MAD_TO_SIGMA * median([abs(each - center) for each in values])


def mean_of_known(values: Iterable[int | None]) -> int | None:
    """Return the mean of the known values. None without any."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None
