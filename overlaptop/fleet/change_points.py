"""A job's last change, found in the lengths of all steps, and in what their ranks load."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.totals import step_of, stepping
from overlaptop.timeline.averages import MAD_TO_SIGMA
from overlaptop.wire.messages import StepTotals

LEAST_BEFORE, LEAST_AFTER = 8, 5
"""Steps on either side of a change."""
MOST_BEFORE, MOST_AFTER = 40, 16
"""Steps compared on either side. A change that is not found within MOST_AFTER steps is drift."""
LEAST_SHARE = 0.15
"""A change moves steps, or what a rank loads, by this share of the step at least: measuring makes steps of
a launch-bound job longer by about a tenth, and is no change."""
NOISES = 5.0
"""And by so many standard deviations of single steps; by fewer where more than LEAST_AFTER are known."""
ALIKE_BEFORE, ALIKE_AFTER = 0.7, 0.8
"""More than this share of the steps is on its own side of the middle: alternation and outliers are none."""
MOST_STEPS = 200
"""The newest that are looked through at once, as when a history arrives."""
SOON_STEPS = 60
"""A change so soon after another one doubles what is needed before the next: such a job varies."""
_STRIDE = 8
_FIGURES = attrgetter("step_ns", "loading_ns")
"""Not its CPU time: that grows while it waits for its GPU, or for others, and does not while it sleeps."""

Series = NDArray[np.float64]


class ChangePoints:
    """Follows a job's steps: look at each Snapshot's ranks."""

    def __init__(self) -> None:
        self.first_step = 0
        """The first since the last change, of the job's own or of a setting; 0: none is known."""
        self.changed_setting = -1
        """The last step in which a setting was changed."""
        self._read = -1
        self._least_before = LEAST_BEFORE
        self._ranks: tuple[int, ...] = ()
        self._columns: deque[tuple[int, Series]] = deque(maxlen=MOST_BEFORE + MOST_AFTER)
        """The newest steps since then that all of these ranks know."""

    def look(self, views: Sequence[RankView]) -> int:
        """Return `first_step`, by now."""
        running = stepping([view for view in views if not view.ended and view.history])
        ends = [view.history[-1].step for view in running]
        if ends and max(ends) < self._read:  # ranks count from 0 again
            self.first_step, self.changed_setting, self._read, self._ranks = 0, -1, -1, ()
        newest = min(ends, default=-1)
        if newest <= self._read:
            return self.first_step
        unread = max(self._read + 1, newest - MOST_STEPS)
        begin = unread
        if (ranks := tuple(view.rank for view in running)) != self._ranks:
            self._ranks, begin = ranks, max(self.first_step, min(unread, newest - MOST_BEFORE - MOST_AFTER))
            self._columns.clear()
        for number in range(begin, newest + 1):
            self._add(number, [step_of(view, number) for view in running])
            if number >= unread and (number % _STRIDE == 0 or number == newest):
                self._find()
        self._read = newest
        return self.first_step

    def _add(self, number: int, steps: Sequence[StepTotals | None]) -> None:
        known = [step for step in steps if step is not None]
        if any(step.changes_setting for step in known):
            self.changed_setting, self.first_step = number, number + 1
            self._columns.clear()
        elif len(known) == len(steps) and not any(step.disturbed for step in known):
            self._columns.append((number, np.array([_FIGURES(step) for step in known], dtype=np.float64)))

    def _find(self) -> None:
        if len(self._columns) < LEAST_BEFORE + LEAST_AFTER:
            return
        values = np.stack([column for _, column in self._columns], axis=2)
        counters = values[:, 1:].reshape(-1, len(self._columns))
        is_known = ~np.isnan(counters).any(axis=1)
        series = np.vstack((np.median(values[:, 0], axis=0), counters[is_known]))
        if (at := last_change(series, self._least_before)) is not None:
            is_soon = self._columns[at][0] - self.first_step < SOON_STEPS
            self._least_before = min(2 * self._least_before, MOST_BEFORE) if is_soon else LEAST_BEFORE
            self.first_step = self._columns[at][0]
            for _ in range(at):
                self._columns.popleft()


def last_change(series: Series, least_before: int = LEAST_BEFORE) -> int | None:
    """Return the column at which the last change begins, of those with at most MOST_AFTER columns behind.

    The first row is the step's length; the others are parts of it.
    """
    steps = series.shape[1]
    if steps < least_before + LEAST_AFTER:
        return None
    length = float(np.median(series[0]))
    first = max(least_before, steps - MOST_AFTER)
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
    noise = MAD_TO_SIGMA * float(np.median(rest))
    if not abs(new - old) >= max(LEAST_SHARE * length, NOISES * noise * (LEAST_AFTER / len(after)) ** 0.5):
        return None
    middle, up = (old + new) / 2, new > old
    if np.mean((before < middle) == up) <= ALIKE_BEFORE or np.mean((after > middle) == up) <= ALIKE_AFTER:
        return None
    both = np.concatenate((before, after))
    return float(rest.sum() / max(1.0, np.abs(both - np.median(both)).sum()))
