"""Actions: a command's work on this rank at the agreed step."""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from overlaptop.agent.control.two_phase_commit import ANY_POSITION, Position

CAPTURED, TRANSITIONAL, TRIAL = "captured", "transitional", "trial"
"""Marks, named like the fields of StepTotals."""
TRIAL_SWITCH = "trial, transitional"
"""A trial's value, or the previous one, takes effect in this step."""
MAX_MARKS = 48


class StepMarks:
    """Marks of steps. Written on a command's thread, read on any."""

    def __init__(self) -> None:
        self._begun: deque[tuple[int, str]] = deque(maxlen=MAX_MARKS)
        """First step of each mark, in order; an empty mark ends the one before."""

    def begin(self, mark: str, step: int) -> None:
        """Mark steps from ``step`` on, at least one. The mark before has at least one, too."""
        self._begun.append((max(step, self._begun[-1][0] + 1) if self._begun else step, mark))

    def end(self, last: int) -> None:
        if self._begun and self._begun[-1][1]:
            self.begin("", last + 1)

    def of(self, step: int) -> str:
        """Return the step's mark; empty: it ran undisturbed."""
        return next((mark for first, mark in reversed(tuple(self._begun)) if first <= step), "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an action."""

    text: str
    old: str = ""
    """Old value, as in CommandReport."""
    new: str = ""


def brief(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:300]


class Action(ABC):
    """A command's work on one rank, once all ranks have agreed on a step."""

    acts: ClassVar[str]
    """State to report from the agreed step on."""
    done: ClassVar[str]
    finishes: ClassVar[str] = ""
    """State to report while `finish` runs; empty: it is quick, and the last boundary ends the mark."""
    together: ClassVar[bool] = False
    """If only some ranks acted, ranks would wait for each other forever."""
    mark: str = TRANSITIONAL
    """The current step's mark in StepTotals; read after each `boundary`."""

    @abstractmethod
    def refusal(self) -> str:
        """Why this rank cannot act now; empty: it can. On the agent's thread."""

    def position(self, step: int) -> Position:  # noqa: ARG002 - for actions that need one
        """Return this rank's position when ``step`` began, if all ranks must act at the same one.

        On the command's thread. Raises LookupError with the reason if it is unknown.
        """
        return ANY_POSITION

    def changes_settings(self, step: int) -> bool:  # noqa: ARG002 - most actions act in all their steps
        """Whether the job may issue other work from ``step`` on, which is not before the agreed step."""
        return True

    @abstractmethod
    def boundary(self, step: int) -> bool:
        """The agreed step or a later one begins. Returns whether to call again at the next boundary.

        On the training thread. An exception ends the action, not the job.
        """

    @abstractmethod
    def finish(self) -> Outcome:
        """Do the work left after the last boundary, on the command's thread. Returns the report.

        Raises OSError or RuntimeError with the reason if the action failed.
        """

    def abandon(self) -> None:  # noqa: B027 - most actions hold nothing
        """Release everything: the job ends, or the action failed. On the training thread."""


class SettingAction(Action):
    """One rank's part in changing a setting."""

    acts = "changing"
    done = "changed"
    together = True
    outcome = Outcome("")

    @abstractmethod
    def undoing(self) -> "SettingAction":
        """Return the action that restores the previous setting exactly, once this one has acted."""

    def finish(self) -> Outcome:
        return self.outcome

    def changes(self, name: str, old: str, new: str, step: int) -> None:
        same = old == new
        text = f"{name} is {new} already" if same else f"{name} {old} → {new} at step {step:,}"
        self.outcome = Outcome(text, old, new)
