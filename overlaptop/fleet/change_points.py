"""A job's last change, found in the lengths and counters of all steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.totals import stepping
from overlaptop.wire.messages import StepTotals

LEAST_BEFORE, LEAST_AFTER = 8, 5
"""Steps on either side of a change."""
MOST_BEFORE, MOST_AFTER = 40, 16
"""Steps compared on either side. A change that is not found within MOST_AFTER steps is drift."""
LEAST_SHARE = 0.12
"""A change moves steps, or a rank's counter, by this share of the step at least."""
NOISES = 3.0
"""And by so many standard deviations of single steps; by fewer where more than LEAST_AFTER are known."""
ALIKE_BEFORE, ALIKE_AFTER = 0.7, 0.8
"""More than this share of the steps is on its own side of the middle: alternation and outliers are none."""
MOST_STEPS = 200
"""The newest that are looked through at once, as when a history arrives."""
_STRIDE = 8
_DEVIATION = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
_NUMBER = attrgetter("step")
_FIGURES = attrgetter("step", "disturbed", "step_ns", "loading_ns", "cpu_ns")

Series = NDArray[np.float64]


class ChangePoints:
    """Follows a job's steps: look at each Snapshot's ranks."""

    def __init__(self) -> None:
        self.first_step = 0
        """The first since the last change, of the job's own or of a setting; 0: none is known."""
        self.changed_setting = -1
        """The last step in which a setting was changed."""
        self._read = -1

    def look(self, views: Sequence[RankView]) -> int:
        """Return `first_step`, by now."""
        running = stepping([view for view in views if not view.ended and view.history])
        ends = [view.history[-1].step for view in running]
        if ends and max(ends) < self._read:  # ranks count from 0 again
            self.first_step, self.changed_setting, self._read = 0, -1, -1
        newest = min(ends, default=-1)
        if newest <= self._read:
            return self.first_step
        begin = max(self._read + 1, newest - MOST_STEPS)
        self._see_settings(running, begin)
        for end in range(min(begin + _STRIDE, newest + 1), newest + _STRIDE, _STRIDE):
            numbers, series = _series(running, self.first_step, min(end, newest + 1))
            if (at := last_change(series)) is not None:
                self.first_step = numbers[at]
        self._read = newest
        return self.first_step

    def _see_settings(self, views: Iterable[RankView], begin: int) -> None:
        for view in views:
            for step in view.history[bisect_left(view.history, begin, key=_NUMBER) :]:
                if step.transitional and step.step > self.changed_setting:
                    self.changed_setting = step.step
        self.first_step = max(self.first_step, self.changed_setting + 1)


def last_change(series: Series) -> int | None:
    """Return the column at which the last change begins, of those with at most MOST_AFTER columns behind.

    The first row is the step's length; the others are parts of it.
    """
    steps = series.shape[1]
    if steps < LEAST_BEFORE + LEAST_AFTER:
        return None
    length = float(np.median(series[0]))
    first = max(LEAST_BEFORE, steps - MOST_AFTER)
    # Nearly always nothing has changed: one look at all rows says so.
    moved = np.median(series[:, -LEAST_AFTER:], axis=1) - np.median(series[:, :first], axis=1)
    rows = series[np.abs(moved) >= LEAST_SHARE / 2 * length]
    found = [
        (cost, at)
        for row in rows
        for at in range(first, steps - LEAST_AFTER + 1)
        if (cost := _cost(row, at, length)) is not None
    ]
    return min(found)[1] if found else None


def _cost(row: Series, at: int, length: float) -> float | None:
    """How badly two levels that meet here fit, as a share of how one does; None: they are no change."""
    before, after = row[max(0, at - MOST_BEFORE) : at], row[at:]
    old, new = float(np.median(before)), float(np.median(after))
    rest = np.concatenate((np.abs(before - old), np.abs(after - new)))
    noise = _DEVIATION * float(np.median(rest))
    if not abs(new - old) >= max(LEAST_SHARE * length, NOISES * noise * (LEAST_AFTER / len(after)) ** 0.5):
        return None
    middle, up = (old + new) / 2, new > old
    if np.mean((before < middle) == up) <= ALIKE_BEFORE or np.mean((after > middle) == up) <= ALIKE_AFTER:
        return None
    both = np.concatenate((before, after))
    return float(rest.sum() / max(1.0, np.abs(both - np.median(both)).sum()))


def _series(views: Sequence[RankView], first: int, end: int) -> tuple[list[int], Series]:
    """The newest steps from `first` to before `end` that all ranks know: numbers, and a row for the length
    and for each counter of each rank.
    """
    known: list[dict[int, list[int | None]]] = []
    for view in views:
        stop = bisect_left(view.history, end, key=_NUMBER)
        start = max(bisect_left(view.history, first, 0, stop, key=_NUMBER), stop - MOST_BEFORE - MOST_AFTER)
        known.append(_figures(view.history[start:stop]))
    shared = sorted(set.intersection(*map(set, known))) if known else []
    if not shared:
        return [], np.empty((1, 0))
    values = np.array([[of_rank[number] for number in shared] for of_rank in known], dtype=np.float64)
    counters = values[:, :, 1:].transpose(0, 2, 1).reshape(-1, len(shared))
    is_known = ~np.isnan(counters).any(axis=1)
    return shared, np.vstack((np.median(values[:, :, 0], axis=0), counters[is_known]))


def _figures(steps: Iterable[StepTotals]) -> dict[int, list[int | None]]:
    figures = map(_FIGURES, steps)
    return {number: rest for number, disturbed, *rest in figures if not disturbed}
