"""Actions: a command's work on this rank at the agreed step."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from overlaptop.agent.control.two_phase_commit import ANY_POSITION, Position
from overlaptop.agent.hooks.process_groups import SequenceNumbers
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.wire.knobs import Knob

CAPTURED, TRANSITIONAL, TRIAL = "captured", "transitional", "trial"
"""Marks, named like the fields of StepTotals."""
TRIAL_SWITCH = "trial, transitional"  # A trial's value, or the previous one, takes effect in this step
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
    """The result of an action, as in CommandReport."""

    text: str
    old: str = ""
    new: str = ""


def brief(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:300]


class Action(ABC):
    """A command's work on one rank, once all ranks have agreed on a step."""

    acts: ClassVar[str]  # State to report from the agreed step on
    done: ClassVar[str]
    finishes: ClassVar[str] = ""
    """State to report while `finish` runs; empty: it is quick, and the last boundary ends the mark."""
    together: ClassVar[bool] = False  # If only some ranks acted, ranks would wait for each other forever
    mark: str = TRANSITIONAL  # The current step's mark in StepTotals; read after each `boundary`

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


class KnobProvider(ABC):
    """One kind of knob: a setting of this process's job that can be changed while it runs."""

    def __init__(self) -> None:
        self._sequence_numbers = SequenceNumbers()

    @abstractmethod
    def knobs(self) -> Sequence[Knob]:
        """Return the present knobs with their values. On the agent's thread."""

    @abstractmethod
    def action(self, knob: str, value: int | None) -> SettingAction:
        """Return the action that sets a value on this rank; None: the script's value.

        Raises ValueError with the reason if there is none.
        """

    @abstractmethod
    def group(self) -> Any:
        """Return the process group whose collectives show how far a rank is; None: there is none."""

    def note_step(self, step: int) -> None:
        """A step begins. On the training thread."""
        if (group := self.group()) is not None:
            self._sequence_numbers.note(step, group)

    def position(self, step: int, words: str) -> Position:
        """Return the rank's position when ``step`` began; ``words``: more that ranks must agree on.

        Raises LookupError if it is unknown.
        """
        if (group := self.group()) is None:
            raise LookupError("has no process group to compare its position by")
        name = str(getattr(group, "group_name", ""))
        return Position(name, f"{self._sequence_numbers.at(step)} with {words}")


class KnobTrial(Action):
    """One rank's part in trying a value: it is set at the agreed step and taken back n steps later.

    All ranks know both steps from the agreement on. So all restore the old value at the same step, even if
    the dashboard or the hub is gone or the agent no longer measures.
    """

    acts = "trying"
    done = "tried"
    together = True
    mark = TRIAL_SWITCH

    def __init__(self, setting: SettingAction, steps: int) -> None:
        """``setting`` sets the value; it is undone ``steps`` steps after the agreed one."""
        self._setting = setting
        self._steps = steps
        self._is_set = False
        self._undoing: SettingAction | None = None
        self._end: int | None = None  # The step at which the value is restored, once the trial has begun

    def refusal(self) -> str:
        return self._setting.refusal()

    def position(self, step: int) -> Position:
        return self._setting.position(step)

    def changes_settings(self, step: int) -> bool:
        return not self._is_set or self._end is None or step >= self._end

    def boundary(self, step: int) -> bool:
        """Set the value, keep it, and restore the old one at the end; later if setting was slow."""
        if self._end is None:
            self._end = step + self._steps
        if not self._is_set:
            if self._setting.boundary(step):
                return True
            self._is_set, self.mark = True, TRIAL
        if step < self._end:
            return True
        if self._undoing is None:
            self._undoing, self.mark = self._setting.undoing(), TRIAL_SWITCH
        try:
            return self._undoing.boundary(step)
        except Exception as fault:
            if raised_by_job(fault):
                raise
            raise RuntimeError(self._why_it_stays(fault)) from fault

    def finish(self) -> Outcome:
        assert self._undoing is not None, "asked once the trial is over"
        try:
            self._undoing.finish()
        except RuntimeError as fault:
            raise RuntimeError(self._why_it_stays(fault)) from fault
        tried = self._setting.finish()
        same = tried.old == tried.new
        text = tried.text if same else f"{tried.text}, back at step {self._end:,}"
        return Outcome(text, tried.old, tried.new)

    def abandon(self) -> None:
        (self._undoing or self._setting).abandon()

    def _why_it_stays(self, fault: Exception) -> str:
        return f"the tried value {self._setting.outcome.new} stays: {fault}"
