"""A rank's last steps as columns of a sparkline."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from overlaptop.fleet.snapshot import RankView
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


def columns(
    history: Sequence[StepTotals],
    width: int,
    steps_per_column: int,
    value: Callable[[StepTotals], float | None],
    gather: Callable[[Sequence[float]], float] = max,
) -> list[float | None]:
    """Return the newest ``width`` columns, oldest first; None if nothing is known.

    Columns begin at multiples of ``steps_per_column`` steps, so that a finished column never changes.
    """
    known: dict[int, list[float]] = {}
    for step in history[-width * steps_per_column :]:
        if (figure := value(step)) is not None:
            known.setdefault(step.step // steps_per_column, []).append(figure)
    end = 1 + (history[-1].step // steps_per_column if history else 0)
    return [gather(known[at]) if at in known else None for at in range(end - width, end)]


def column_of(
    history: Sequence[StepTotals], width: int, steps_per_column: int, step: int | None
) -> int | None:
    """Return the column of this step; None if it is not shown."""
    if step is None or not history:
        return None
    at = width - 1 - (history[-1].step // steps_per_column - step // steps_per_column)
    return at if 0 <= at < width else None


def column_ages(
    history: Sequence[StepTotals], width: int, steps_per_column: int, every: int
) -> list[tuple[int, int]]:
    """Return each ``every``-th column back from the newest, and its first step's age in ns."""
    newest, begins_ns = history[-1], dict[int, int]()
    for step in reversed(history):
        columns_ago = newest.step // steps_per_column - step.step // steps_per_column
        begins_ns[width - 1 - columns_ago] = step.start_ns
    wanted = range(width - 1 - every, -1, -every)
    return [(at, newest.start_ns - begins_ns[at]) for at in wanted if at in begins_ns]


def slowest_in(history: Sequence[StepTotals], width: int, steps_per_column: int, column: int) -> int | None:
    """Return the slowest step of a column; None if it has none."""
    shown = [step for step in history if column_of(history, width, steps_per_column, step.step) == column]
    slowest = max(shown, key=lambda step: step.step_ns, default=None)
    return slowest.step if slowest is not None else None


def _round_up(value: float) -> float:
    """Round up to the next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 × 10^k."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * m for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * m >= value * (1 - 1e-9))
