"""A rank's last steps as columns of a sparkline."""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from statistics import median

from overlaptop.fleet.snapshot import RankView
from overlaptop.tui.draw.bars import binned
from overlaptop.wire.messages import StepTotals

_COLUMN_S = 1.0
_RECENT_STEPS, _ASKED_RANKS = 100, 64
_STEPS_A_COLUMN = (1, 2, 5, 10, 20, 50)
_FILLED = 0.75


def steps_per_column(typical_ns: float | None, *, moving: bool = True) -> int:
    """Return the steps per column for about one second a column; one in a trace."""
    if not typical_ns or not moving:
        return 1
    wanted = _COLUMN_S * 1e9 / typical_ns
    return next((n for n in reversed(_STEPS_A_COLUMN) if n <= wanted), 1)


def typical_step_ns(ranks: Sequence[RankView]) -> float | None:
    """Return the median over ranks of their median step time; of many, over some."""
    asked = ranks[:: 1 + len(ranks) // _ASKED_RANKS]
    recent = [view.history[-_RECENT_STEPS:] for view in asked if view.history]
    medians = [median([step.step_ns for step in steps]) for steps in recent]
    return median(medians) if medians else None


def scale_top_ns(drawn_ns: Iterable[float | None]) -> int:
    """Return the upper end of a step-time scale: 1.5 times what nine in ten columns reach, rounded.

    A single outlier would compress all other columns, and move the scale when it appears and disappears. 0
    if nothing is known.
    """
    known = sorted(each for each in drawn_ns if each)
    return math.ceil(_round_up(1.5 * known[(len(known) - 1) * 9 // 10])) if known else 0


def bar_top_ns(longest_ns: int, before_ns: int = 0) -> int:
    """Return the upper end of the bars' scale: ``longest_ns`` rounded up to two digits.

    The present end ``before_ns`` stays while the longest bar fills three quarters of it.
    """
    if longest_ns <= 0:
        return 0
    if _FILLED * before_ns <= longest_ns <= before_ns:
        return before_ns
    grain_ns = int(10 ** max(0, len(str(longest_ns)) - 2))
    return -(-longest_ns // grain_ns) * grain_ns


class Columns:
    """A rank's newest steps in columns, oldest first.

    They begin at multiples of ``each`` steps, so that a finished column never changes.
    """

    def __init__(self, steps: Sequence[StepTotals], width: int, each: int) -> None:
        self._steps, self._width, self._each = steps, width, each
        self._first = 1 - width + (steps[-1].step // each if steps else 0)

    def values(
        self,
        value: Callable[[StepTotals], float | None],
        gather: Callable[[Sequence[float]], float] = max,
    ) -> list[float | None]:
        """Return a value a column; None if nothing is known."""
        known = ((step.step // self._each, value(step)) for step in reversed(self._steps))
        return binned(known, self._width, gather)

    def column(self, step: int | None) -> int | None:
        """Return the column of this step; None if it is not shown."""
        at = step // self._each - self._first if step is not None else -1
        return at if 0 <= at < self._width else None

    def ages_ns(self, every: int) -> list[tuple[int, int]]:
        """Return each ``every``-th column back from the newest, and its first step's age in ns."""
        begins_ns = {self.column(step.step): step.start_ns for step in reversed(self._steps)}
        wanted = range(self._width - 1 - every, -1, -every)
        return [(at, self._steps[-1].start_ns - begins_ns[at]) for at in wanted if at in begins_ns]

    def slowest(self, column: int) -> int | None:
        """Return the slowest step of a column; None if it has none."""
        shown = [step for step in self._steps if self.column(step.step) == column]
        return max(shown, key=attrgetter("step_ns")).step if shown else None


def _round_up(value: float) -> float:
    """Round up to the next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 × 10^k."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * m for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * m >= value * (1 - 1e-9))
