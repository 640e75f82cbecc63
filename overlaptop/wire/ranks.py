"""Numbers of ranks in words."""

from __future__ import annotations

from collections.abc import Iterable


def runs(numbers: Iterable[int]) -> list[str]:
    """``["0-3", "8"]``: neighbours together; ``numbers`` ascend."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, run)) for run in found]
