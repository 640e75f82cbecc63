"""Which steps commands kept from the job's own pace, and how StepTotals marks each of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

CAPTURED, TRANSITIONAL, TRIAL = "captured", "transitional", "trial"
"""As the fields of StepTotals."""
TRIAL_SWITCH = "trial, transitional"
"""Both: a trial's value comes into force, or the one before."""
MAX_STRETCHES = 24
"""A trial has three."""


@dataclass(slots=True)
class _Stretch:
    mark: str
    first: int
    last: int | None = None
    """None: it still goes on."""


class StepMarks:
    """Stretches of marked steps. Written on the thread of a command, read on any."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque(maxlen=MAX_STRETCHES)

    def begin(self, mark: str, step: int) -> None:
        """Mark steps from ``step`` on, and no longer in the way before."""
        self.end(step - 1)
        self._stretches.append(_Stretch(mark, step))

    def end(self, last: int) -> None:
        """``last`` is the last marked step; a stretch that has begun has at least one."""
        if self._stretches and (newest := self._stretches[-1]).last is None:
            newest.last = max(newest.first, last)

    def of(self, step: int) -> str:
        """How to mark this step; empty: it ran at the job's own pace."""
        for each in tuple(self._stretches):
            if each.first <= step and (each.last is None or step <= each.last):
                return each.mark
        return ""
