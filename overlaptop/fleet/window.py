"""Selects a rank's steps in a window."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from operator import attrgetter
from statistics import median_low
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView, Window
from overlaptop.fleet.waits import FIRST_STEPS, StepWaits
from overlaptop.timeline import ratios
from overlaptop.wire.messages import StepTotals

HISTORY_STEPS, LEAST_HISTORY_STEPS, MOST_HISTORY_STEPS = 600, 64, 1 << 17
"""Most steps kept of a rank, the fewest, and the most of all ranks: some 100 MB."""
WINDOW_NS = {Window.SECONDS: 20_000_000_000, Window.MINUTE: 60_000_000_000}
LEAST_STEPS = 3  # Minimum number of steps in a window of seconds, if steps are long
LAST_STEPS = 10  # Steps in Window.STEPS
EVIDENCE_STEPS, LEAST_EVIDENCE_STEPS, MOST_EVIDENCE_STEPS = 120, 16, 1 << 14
"""Newest measured steps since the job changed that rules read: most of a rank, fewest, most of all ranks.
More would cost more time."""
PAUSE_NS, PAUSE_STEPS = 10_000_000_000, 5
"""A step longer than both limits, in time and in usual steps, counts as a pause."""
_MOST_SUMMED = {Window.SECONDS: 2048, Window.STEPS: 2048, Window.MINUTE: 8192}
"""Maximum steps of all ranks together. The first window is summed at each read."""
_NUMBER, _START, _LENGTH = attrgetter("step"), attrgetter("start_ns"), attrgetter("step_ns")


def overlap_of(steps: Collection[StepTotals]) -> float | None:
    """Return the overlap of the sums over steps. None without communication."""
    hidden_ns = sum(step.hidden_ns or 0 for step in steps)
    return ratios.overlap(hidden_ns, sum(step.comm_ns or 0 for step in steps))


def history_steps(ranks: int) -> int:
    """Return the number of steps kept of each rank of a job with this many ranks."""
    return max(LEAST_HISTORY_STEPS, min(HISTORY_STEPS, MOST_HISTORY_STEPS // max(1, ranks)))


def evidence_steps(ranks: int) -> int:
    """Return the number of measured steps that rules read of each rank of a job with this many ranks."""
    return max(LEAST_EVIDENCE_STEPS, min(EVIDENCE_STEPS, MOST_EVIDENCE_STEPS // max(1, ranks)))


class WindowSteps(NamedTuple):
    """A rank's steps of a window, oldest first."""

    view: RankView
    lengths_ns: Sequence[int]  # Of the steps that no command disturbed and without a stall
    measured: Sequence[StepTotals]
    """Those steps with lane totals, up to the step of the rank's row; if there are none, that step. If
    ranks have measured some common steps, only those: all ranks' figures then cover the same time.
    """
    cut: bool = False  # The window has more steps than can be kept or read
    paused_steps: int = 0  # Steps left out because the job paused in them


def steps_of(views: Sequence[RankView], newest: int, window: Window, since: int = 0) -> list[WindowSteps]:
    """Return each rank's steps of the window up to `newest`, from `since` on if there are any."""
    most = max(LEAST_STEPS, _MOST_SUMMED[window] // max(1, len(views)))
    kept = history_steps(len(views))
    found = [_steps_of(view, newest, window, most, kept, since) for view in views]
    numbers = [set(map(_NUMBER, each.measured)) for each in found if each.measured]
    shared = set.intersection(*numbers) if numbers else set()
    if shared and any(len(each) != len(shared) for each in numbers):
        found = [
            each._replace(measured=[step for step in each.measured if step.step in shared])
            for each in found
        ]
    if window is not Window.STEPS:
        return found
    return [
        each._replace(
            lengths_ns=each.lengths_ns[-LAST_STEPS:],
            measured=each.measured[-LAST_STEPS:],
            cut=each.cut and len(each.measured) < LAST_STEPS,
        )
        for each in found
    ]


def _steps_of(view: RankView, newest: int, window: Window, most: int, kept: int, since: int) -> WindowSteps:
    history = view.history
    end = bisect_right(history, newest, key=_NUMBER)
    first = max(0, end - most)
    cut = first > 0 or len(history) >= kept
    if window in WINDOW_NS and end:
        since_ns = history[end - 1].start_ns + history[end - 1].step_ns - WINDOW_NS[window]
        begins = min(bisect_left(history, since_ns, first, end, key=_START), max(first, end - LEAST_STEPS))
        cut, first = cut and begins == first, begins
    changed = bisect_left(history, since, first, end, key=_NUMBER)
    if first < changed < end:
        first, cut = changed, False
    steps: Sequence[StepTotals] = history[first:end]
    if steps and steps[0].step <= view.disturbed_step:
        # Drop steps from before a change of a setting, unless there is no step with the new value yet.
        after: list[StepTotals] = []
        for step in reversed(steps):
            if not step.changes_setting:
                after.append(step)
            elif after:
                break
        cut, steps = cut and len(after) == len(steps), [step for step in after[::-1] if not step.disturbed]
    lengths_ns = list(map(_LENGTH, steps))
    limit_ns, known = longest_going_ns(lengths_ns), len(steps)
    if lengths_ns and max(lengths_ns) > limit_ns:
        steps = [step for step in steps if step.step_ns <= limit_ns]
        lengths_ns = list(map(_LENGTH, steps))
    paused_steps = known - len(steps)

    upto = view.measured.step if view.measured is not None else -1
    measured = [step for step in steps if step.comm_ns is not None and step.step <= upto]
    if not measured and view.measured is not None:
        measured = [view.measured]
    return WindowSteps(view, lengths_ns, measured, cut, paused_steps)


def in_window(step_waits: Sequence[StepWaits], first_step: int | None) -> Sequence[StepWaits]:
    """Return the steps from `first_step` on without stalls, and if possible without FIRST_STEPS."""
    limit_ns = longest_going_ns([each.step_ns for each in step_waits])
    first = -1 if first_step is None else first_step
    found = [each for each in step_waits if each.step >= first and each.step_ns <= limit_ns]
    return [each for each in found if each.step >= FIRST_STEPS] or found


def longest_going_ns(lengths_ns: Sequence[int]) -> float:
    """Return the length beyond which a step of a window counts as a stall, from all lengths. One hang or a
    pause of minutes would dominate a mean.
    """
    if max(lengths_ns, default=0) <= PAUSE_NS:
        return PAUSE_NS
    return max(PAUSE_NS, PAUSE_STEPS * median_low(lengths_ns))
