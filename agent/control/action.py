"""Actions: what a command does on this rank at the step on which all have agreed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from overlaptop.agent.control.two_phase_commit import ANY_POSITION, Position

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action came to."""

    text: str
    """For the screen."""
    was: str = ""
    """As CommandReport has it."""
    becomes: str = ""


def brief(fault: BaseException) -> str:
    """A fault in one line for the screen."""
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:300]


class Action(ABC):
    """What a command does on one rank, once all ranks have agreed on a step."""

    acts: ClassVar[str]
    """The state that it reports from the agreed step on."""
    done: ClassVar[str]
    finishes: ClassVar[str] = ""
    """While `finish` runs; empty: that takes no time, and the last boundary ends the disturbance."""
    together: ClassVar[bool] = False
    """If some ranks acted and others did not, they would wait for each other for ever."""
    mark: str = TRANSITIONAL
    """How StepTotals marks the step that has begun; read after each `boundary`."""

    @abstractmethod
    def refusal(self) -> str:
        """Why this rank cannot do it now; empty: it can. On the agent's thread."""

    def position(self, step: int) -> Position:  # noqa: ARG002 - for those that need one
        """Where this rank was when ``step`` began, if all have to act in the same place.

        On the command's thread. Raises LookupError with the reason where that is not known.
        """
        return ANY_POSITION

    def changes_settings(self, step: int) -> bool:  # noqa: ARG002 - most act in each of their steps
        """Whether what the job issues may differ from ``step`` on, at or behind the agreed one."""
        return True

    @abstractmethod
    def boundary(self, step: int) -> bool:
        """The agreed step, or a later one, begins; returns whether to be called at the next one too.

        On the training thread. What it raises ends the action, not the job.
        """

    @abstractmethod
    def finish(self) -> Outcome:
        """What remains after the last boundary, on the command's own thread. Returns what to report.

        Raises OSError or RuntimeError with the reason where it failed.
        """

    def abandon(self) -> None:  # noqa: B027 - most hold nothing
        """The job ends, or the action failed: release everything. On the training thread."""


class SettingAction(Action):
    """One rank's part in changing a setting."""

    acts = "changing"
    done = "changed"
    together = True
    outcome = Outcome("")

    @abstractmethod
    def undoing(self) -> SettingAction:
        """The action that gives back exactly what was in force before, once this one has acted."""

    def finish(self) -> Outcome:
        """From what to what, and when."""
        return self.outcome

    def changes(self, name: str, was: str, becomes: str, step: int) -> None:
        """Note the change at ``step`` as the outcome."""
        same = was == becomes
        text = f"{name} is {becomes} already" if same else f"{name} {was} → {becomes} at step {step:,}"
        self.outcome = Outcome(text, was, becomes)
