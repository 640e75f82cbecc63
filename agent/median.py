"""The median. Not statistics': with it come modules that the script may have files of the same name for."""

from __future__ import annotations

from collections.abc import Collection


def median(values: Collection[float]) -> float:
    """The middle one, or the mean of the two in the middle. `values` is not empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
