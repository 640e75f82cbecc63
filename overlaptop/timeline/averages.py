"""Averages, also for the training process: not statistics', with which come modules of which the script may
have files of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""


def median(values: Collection[float]) -> float:
    """The middle one, or the mean of the two in the middle. `values` is not empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def sigma(values: Collection[float]) -> float:
    """The standard deviation as outliers do not move it: by the median of the distances from the median."""
    center = median(values)
    return MAD_TO_SIGMA * median([abs(each - center) for each in values])


def mean_of_known(values: Iterable[int | None]) -> int | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None
