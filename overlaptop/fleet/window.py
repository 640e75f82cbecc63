"""Which steps of a rank are in a window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from statistics import median_low
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView, Window
from overlaptop.fleet.waits import StepWaits
from overlaptop.wire.messages import StepTotals

HISTORY_STEPS = 600
"""Steps of a rank that are kept."""
WINDOW_NS = {Window.SECONDS: 20_000_000_000, Window.MINUTE: 60_000_000_000}
LEAST_STEPS = 3
"""So many where they are longer."""
FIRST_STEPS = 2
"""Of a running job: they compile, allocate and fill caches, and say nothing of the others."""
LAST_STEPS = 10
"""Of Window.STEPS."""
EVIDENCE_STEPS = 120
"""The newest measured steps since the job changed that rules look at: more would cost more."""
STANDSTILL_NS, STANDSTILL_STEPS = 10_000_000_000, 5
"""A step that is longer than both, this and so many usual ones, is none in which the job went on."""
_MOST_SUMMED = {Window.SECONDS: 2048, Window.STEPS: 2048, Window.MINUTE: 8192}
"""Steps of all ranks together. The first is summed at each reading."""
_NUMBER, _START, _LENGTH = attrgetter("step"), attrgetter("start_ns"), attrgetter("step_ns")
_DISTURBED, _CHANGES_SETTING = attrgetter("disturbed"), attrgetter("changes_setting")


class WindowSteps(NamedTuple):
    """A rank's steps of a window, oldest first."""

    view: RankView
    all: Sequence[StepTotals]
    """Those that no command disturbed and in which the job did not stand still."""
    measured: Sequence[StepTotals]
    """Of them those that carry lane totals, up to that of the rank's row; where there is none, that one.
    Where ranks have measured some of the same steps, those alone: all ranks' figures are of one time then.
    """
    cut: bool = False
    """There are more than are kept or can be read."""
    stood_still: int = 0
    """Steps that were left out because the job stood still in them."""


def steps_of(views: Sequence[RankView], newest: int, window: Window, since: int = 0) -> list[WindowSteps]:
    """Each rank's steps of a window of several that ends with this step; from `since` on where there are
    any.
    """
    most = max(LEAST_STEPS, _MOST_SUMMED[window] // max(1, len(views)))
    found = _shared([_steps_of(view, newest, window, most, since) for view in views])
    return [_last_of(each) for each in found] if window is Window.STEPS else found


def _shared(found: list[WindowSteps]) -> list[WindowSteps]:
    numbers = [set(map(_NUMBER, each.measured)) for each in found if each.measured]
    shared = set.intersection(*numbers) if numbers else set()
    if not shared or all(len(each) == len(shared) for each in numbers):
        return found
    return [
        each._replace(measured=[step for step in each.measured if step.step in shared]) for each in found
    ]


def _last_of(steps: WindowSteps) -> WindowSteps:
    """Window.STEPS is cut where not even so few are known."""
    return steps._replace(
        all=steps.all[-LAST_STEPS:],
        measured=steps.measured[-LAST_STEPS:],
        cut=steps.cut and len(steps.measured) < LAST_STEPS,
    )


def _steps_of(view: RankView, newest: int, window: Window, most: int, since: int) -> WindowSteps:
    history = view.history
    end = bisect_right(history, newest, key=_NUMBER)
    first = max(0, end - most)
    cut = first > 0 or len(history) == HISTORY_STEPS
    if window in WINDOW_NS and end:
        since_ns = history[end - 1].start_ns + history[end - 1].step_ns - WINDOW_NS[window]
        begins = min(bisect_left(history, since_ns, first, end, key=_START), max(first, end - LEAST_STEPS))
        cut, first = cut and begins == first, begins
    changed = bisect_left(history, since, first, end, key=_NUMBER)
    if first < changed < end:
        first, cut = changed, False
    steps: Sequence[StepTotals] = history[first:end]
    if any(map(_CHANGES_SETTING, steps)):
        after = _since_change(steps)
        cut, steps = cut and len(after) == len(steps), after
    if any(map(_DISTURBED, steps)):
        steps = [step for step in steps if not step.disturbed]
    lengths_ns = list(map(_LENGTH, steps))
    limit_ns, known = longest_going_ns(lengths_ns), len(steps)
    if lengths_ns and max(lengths_ns) > limit_ns:
        steps = [step for step in steps if step.step_ns <= limit_ns]
    stood_still = known - len(steps)

    upto = view.measured.step if view.measured is not None else -1
    measured = [step for step in steps if step.comm_ns is not None and step.step <= upto]
    if not measured and view.measured is not None:
        measured = [view.measured]
    return WindowSteps(view, steps, measured, cut, stood_still)


def _since_change(steps: Sequence[StepTotals]) -> list[StepTotals]:
    """What was before a change belongs to another value of the setting; but it is all that is known until
    there is a step with the new one.
    """
    found: list[StepTotals] = []
    for step in reversed(steps):
        if not step.changes_setting:
            found.append(step)
        elif found:
            break
    return found[::-1]


def in_window(split_steps: Sequence[StepWaits], first_step: int | None) -> Sequence[StepWaits]:
    """Those from this step on in which the job went on; of FIRST_STEPS only where there are no others."""
    limit_ns = longest_going_ns([each.step_ns for each in split_steps])
    first = -1 if first_step is None else first_step
    found = [each for each in split_steps if each.step >= first and each.step_ns <= limit_ns]
    return [each for each in found if each.step >= FIRST_STEPS] or found


def longest_going_ns(lengths_ns: Sequence[int]) -> float:
    """The length beyond which a step of a window is one in which the job stood still, given them all: one
    that hung, or a pause of minutes, would be all that a mean tells.
    """
    if max(lengths_ns, default=0) <= STANDSTILL_NS:
        return STANDSTILL_NS
    return max(STANDSTILL_NS, STANDSTILL_STEPS * median_low(lengths_ns))
