"""Detects a job's last change from the step lengths and loading times of its ranks."""

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
"""Minimum steps on either side of a change."""
MOST_BEFORE, MOST_AFTER = 40, 16
"""Maximum steps compared on either side. A change not found within MOST_AFTER steps counts as drift."""
LEAST_SHARE = 0.15
"""Minimum change of step or loading time, as a share of the step. Measuring alone makes the steps of a
launch-bound job about a tenth longer, which is no change."""
NOISES = 5.0
"""Minimum change in standard deviations of single steps.
With more than LEAST_AFTER steps, fewer suffice."""
ALIKE_BEFORE, ALIKE_AFTER = 0.7, 0.8
"""Minimum share of steps on their own side of the middle. It rules out alternation and outliers."""
MOST_STEPS = 200
"""Newest steps searched at once, for example when a history arrives."""
SOON_STEPS = 60
"""A change within this many steps of the last one doubles what the next one needs: such a job varies."""
_STRIDE = 8
_FIGURES = attrgetter("step_ns", "loading_ns")
"""Without CPU time: it grows while a rank spins for its GPU or its peers, and not while the rank sleeps."""

Series = NDArray[np.float64]


class ChangePoints:
    """Finds changes in a job's steps. Call `look` with each Snapshot's ranks."""

    def __init__(self) -> None:
        self.first_step = 0
        """First step since the last change, by the job itself or by a setting. 0 if there was none."""
        self.changed_setting = -1
        """Last step that a setting changed."""
        self._read = -1
        self._least_before = LEAST_BEFORE
        self._ranks: tuple[int, ...] = ()
        self._columns: deque[tuple[int, Series]] = deque(maxlen=MOST_BEFORE + MOST_AFTER)
        """Newest steps since then that all these ranks know."""

    def look(self, views: Sequence[RankView]) -> int:
        """Add the ranks' new steps and return the current `first_step`."""
        running = stepping([view for view in views if not view.ended and view.history])
        ends = [view.history[-1].step for view in running]
        if ends and max(ends) < self._read:  # the ranks restarted and count from 0 again
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
    """Return the column where the last change begins, or None. At most MOST_AFTER columns may follow it.

    The first row is the step length; the other rows are parts of it.
    """
    steps = series.shape[1]
    if steps < least_before + LEAST_AFTER:
        return None
    length = float(np.median(series[0]))
    first = max(least_before, steps - MOST_AFTER)
    # Usually nothing has changed, and one check of all rows shows that.
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
    """Return the misfit of two levels meeting at `at`, relative to one level.
    None if there is no change.
    """
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
