"""Detects a job's last change from the figures of all its steps, measured or not, and from waits."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.totals import step_of, stepping
from overlaptop.fleet.waits import StepWaits
from overlaptop.timeline.averages import MAD_TO_SIGMA
from overlaptop.wire.messages import StepTotals

LEAST_BEFORE, LEAST_AFTER = 8, 5  # Minimum steps on either side of a change
LASTS_NS, LASTS_STEPS = 1_000_000_000, 10
"""Minimum time or steps after a change, whichever is less: other processes disturb a job for half a
second."""
MOST_BEFORE, MOST_AFTER = 40, 16
"""Maximum steps compared on either side. A change not found within MOST_AFTER steps counts as drift."""
LEAST_SHARE = 0.15  # Minimum change of the step or a counter, as a share of the step
LEAST_WAIT_SHARE = 0.05
"""Minimum change of a rank's exposed wait. It has less noise: a late rank shows in it before the step is
clearly longer."""
NOISES = 5.0
"""Minimum change in standard deviations of single steps.
With more than LEAST_AFTER steps, fewer suffice."""
ALIKE_BEFORE, ALIKE_AFTER = 0.7, 0.8
"""Minimum share of steps on their own side of the middle. It rules out alternation and outliers."""
MOST_BY_MEASURING = 2.0  # No step gets this many times as long because it is measured
MOST_STEPS = 200  # Newest steps searched at once, for example when a history arrives
BLOCK_STEPS = 8
"""Steps searched at a time. The medians of such blocks show how far a job wanders within seconds: one that
launches slowly may, by a third. They also show a change that single steps are too noisy for."""
LEAST_BLOCKS, MOST_BLOCKS = 6, 128
WANDERS = 4.0  # Minimum change in standard deviations of blocks

Series = NDArray[np.float64]

_FIGURES = attrgetter("step_ns", "loading_ns", "full_collections", "forward_ns")
"""A step's length and counters. The forward phase shows a slow rank that others hide: a step has noise of
all ranks. Without CPU time: it grows while a rank spins for its GPU or its peers, and not while the rank
sleeps."""
_COUNTERS = 3


class ChangePoints:
    """Finds changes in a job's steps. Call `look` with each Snapshot's ranks, then `add_waits` with each
    step that was broken down since.
    """

    def __init__(self) -> None:
        self.first_step = self.before_step = 0
        """First step since the last change, by the job itself or by a setting, and since the one before."""
        self.changed_setting = -1  # Last step that a setting changed
        self._read = -1
        self._ranks: tuple[int, ...] = ()
        self._columns: deque[tuple[int, Series]] = deque(maxlen=MOST_BEFORE + MOST_AFTER)
        """Newest steps since then that all these ranks know: the length, then each rank's counters."""
        self._held: list[tuple[int, Series]] = []
        """Measured steps in a row, until it is clear that all steps are measured now."""
        self._measured_ns, self._measured_steps = 0.0, 0  # How long this row is
        self._blocks: deque[tuple[int, Series]] = deque(maxlen=MOST_BLOCKS)
        """Blocks since then: the first step, and the medians of its columns."""
        self._blocked = -1  # Last step of the last block
        self._strays: deque[Series] = deque(maxlen=MOST_BLOCKS)
        """How far the blocks of earlier levels were from the median of their level."""
        self._waits: deque[tuple[int, int, int]] = deque(maxlen=MOST_BEFORE + MOST_AFTER)
        """Newest broken-down steps since then: number, length, and the longest exposed wait of a rank."""
        self._waiting: Collection[int] = ()  # The ranks of these
        self._wander = np.zeros(1)  # Standard deviation of each row's blocks; 0 while they are too few

    @property
    def wander_ns(self) -> float:
        """Standard deviation of the median of `BLOCK_STEPS` steps about their level. 0: not known."""
        return float(self._wander[0])

    def look(self, views: Sequence[RankView]) -> None:
        """Add the ranks' new steps."""
        running = stepping([view for view in views if not view.ended and view.history])
        ends = [view.history[-1].step for view in running]
        if ends and max(ends) < self._read:  # the ranks restarted and count from 0 again
            self.first_step, self.changed_setting, self._read, self._ranks = 0, -1, -1, ()
        newest = min(ends, default=-1)
        if newest <= self._read:
            return
        unread = max(self._read + 1, newest - MOST_STEPS)
        begin = unread
        if (ranks := tuple(view.rank for view in running)) != self._ranks:
            self._ranks, begin = ranks, max(self.first_step, min(unread, newest - MOST_BEFORE - MOST_AFTER))
            for each in (self._columns, self._held, self._blocks, self._strays, self._waits):
                each.clear()
            self._wander, self._blocked = np.zeros(1 + _COUNTERS * len(ranks)), -1
        for number in range(begin, newest + 1):
            self._add(number, [step_of(view, number) for view in running])
            is_block = number % BLOCK_STEPS == 0 and self._add_block()
            if number >= unread and (is_block or number == newest):
                self._find(is_block)
        self._read = newest

    def add_waits(self, step: StepWaits) -> None:
        if step.times.keys() != self._waiting:
            self._waiting = step.times.keys()
            self._waits.clear()
        longest_ns = max((each.exposed_wait_ns for each in step.times.values()), default=0)
        self._waits.append((step.step, step.step_ns, longest_ns))
        if len(self._waits) < LEAST_BEFORE + LEAST_AFTER:
            return
        numbers, lengths_ns, waits_ns = np.array(self._waits, dtype=np.float64).T
        least_ns = LEAST_WAIT_SHARE * np.median(lengths_ns)
        if (at := last_change(waits_ns[np.newaxis], np.array([least_ns]), LEAST_AFTER)) is not None:
            self._begin_level(int(numbers[at]))

    def _add(self, number: int, steps: Sequence[StepTotals | None]) -> None:
        known = [step for step in steps if step is not None]
        if any(step.changes_setting for step in known):
            self.changed_setting = number
            self._begin_level(number + 1)
        if len(known) < len(steps) or any(step.disturbed for step in known):
            return
        figures = np.array([_FIGURES(step) for step in known], dtype=np.float64)
        figures[:, 2] = figures[:, 0] * np.sign(figures[:, 2])  # a step that collects counts whole
        column = np.concatenate(([np.median(figures[:, 0])], figures[:, 1:].ravel()))
        if not any(step.measured for step in known):
            self._held.clear()
            self._measured_ns, self._measured_steps = 0.0, 0
            self._columns.append((number, column))
            return
        # Measuring makes the steps of a launch-bound job longer, which is no change. A burst has only short
        # rows of measured steps; long steps are all measured.
        self._held.append((number, column))
        self._measured_ns, self._measured_steps = self._measured_ns + column[0], self._measured_steps + 1
        is_row = self._measured_ns >= LASTS_NS and self._measured_steps >= LEAST_AFTER
        lengths_ns = [held[0] for _, held in self._columns] or [math.inf]
        if is_row or column[0] >= MOST_BY_MEASURING * np.median(lengths_ns):
            self._columns.extend(self._held)
            self._held.clear()

    def _add_block(self) -> bool:
        unblocked = [each for each in self._columns if each[0] > self._blocked][-BLOCK_STEPS:]
        if len(unblocked) < BLOCK_STEPS:
            return False
        self._blocks.append((unblocked[0][0], np.median(_rows(unblocked), axis=1)))
        self._blocked, self._wander = unblocked[-1][0], self._deviation()
        return True

    def _find(self, is_block: bool) -> None:
        for levels, least_after in ((self._columns, None), (self._blocks if is_block else (), LEAST_AFTER)):
            if len(levels) < LEAST_BEFORE + LEAST_AFTER:
                continue
            rows = _rows(levels)
            varies = np.ptp(rows, axis=1) > 0  # not so where a step is not known
            varies[0] = True  # the step length
            length_ns = float(np.median(rows[0]))
            least_ns = np.maximum(WANDERS * self._wander[varies], LEAST_SHARE * length_ns)
            if least_after is None:
                least_after = max(LEAST_AFTER, min(LASTS_STEPS, math.ceil(LASTS_NS / max(1.0, length_ns))))
            at = last_change(rows[varies], least_ns, least_after)
            if at is not None:
                self._begin_level(levels[at][0])
                return

    def _begin_level(self, first_step: int) -> None:
        if first_step - self.first_step >= LEAST_BEFORE:  # else the same change, found more exactly
            self.before_step = self.first_step
        self.first_step = first_step
        while self._columns and self._columns[0][0] < first_step:
            self._columns.popleft()
        while self._waits and self._waits[0][0] < first_step:
            self._waits.popleft()
        self._strays.extend(_strays([medians for _, medians in self._blocks]))
        self._blocks.clear()
        self._blocked = -1
        self._wander = self._deviation()

    def _deviation(self) -> Series:
        found = [*self._strays, *_strays([medians for _, medians in self._blocks])]
        if len(found) < LEAST_BLOCKS:
            return np.zeros(1 + _COUNTERS * len(self._ranks))
        return MAD_TO_SIGMA * np.median(np.abs(found), axis=0)


def _rows(columns: Iterable[tuple[int, Series]]) -> Series:
    """Return the step length, and the counters of each rank, of these steps or blocks."""
    return np.stack([column for _, column in columns], axis=1)


def _strays(blocks: Collection[Series]) -> Iterable[Series]:
    found = np.array(blocks)
    return found - np.median(found, axis=0) if blocks else ()


def last_change(series: Series, least_ns: Series, least_after: int) -> int | None:
    """Return the column where the last change begins, or None. At most MOST_AFTER columns may follow it.

    ``least_ns``: each row's minimum change, of shape (rows,). ``least_after``: minimum columns after it.
    """
    steps = series.shape[1]
    first = max(LEAST_BEFORE, steps - MOST_AFTER)
    # Usually nothing has changed, and one check of all rows shows that.
    moved = np.median(series[:, -LEAST_AFTER:], axis=1) - np.median(series[:, :first], axis=1)
    found = [
        (cost, at)
        for row, least, by in zip(series, least_ns, moved, strict=True)
        if abs(by) >= least / 2
        for at in range(first, steps - LEAST_AFTER + 1)
        if (cost := _cost(row, at, least)) is not None
    ]
    at = min(found)[1] if found else steps
    return at if steps - at >= least_after else None


def _cost(row: Series, at: int, least_ns: float) -> float | None:
    """Return the misfit of two levels meeting at `at`, relative to one level. None: no change."""
    before, after = row[max(0, at - MOST_BEFORE) : at], row[at:]
    old, new = float(np.median(before)), float(np.median(after))
    rest = np.concatenate((np.abs(before - old), np.abs(after - new)))
    noise = MAD_TO_SIGMA * float(np.median(rest))
    if not abs(new - old) >= max(least_ns, NOISES * noise * (LEAST_AFTER / len(after)) ** 0.5):
        return None
    middle, up = (old + new) / 2, new > old
    if np.mean((before < middle) == up) <= ALIKE_BEFORE or np.mean((after > middle) == up) <= ALIKE_AFTER:
        return None
    both = np.concatenate((before, after))
    return float(rest.sum() / max(1.0, np.abs(both - np.median(both)).sum()))
