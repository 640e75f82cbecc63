"""Actions: what a command does on this rank at the step on which all have agreed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from overlaptop.agent.control.two_phase_commit import RESOLVE_S, Position

RESOLVE_TOGETHER_S = 240.0
"""Where a rank that does not act while others do would hang the job: better to stand still for a while,
though never until the others' collectives time out (see participant.Participant.max_stall_s)."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The states that a kind of action reports, and what it needs to go well."""

    acts: str
    """From the agreed step on."""
    done: str
    finishes: str = ""
    """While `Action.finish` runs; empty: that takes no time, and the last boundary ends the disturbance."""
    together: bool = False
    """If some ranks acted and others did not, they would wait for each other for ever."""

    @property
    def resolve_s(self) -> float:
        """The longest that training waits at the agreed step for the decision."""
        return RESOLVE_TOGETHER_S if self.together else RESOLVE_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action came to."""

    text: str
    """For the screen."""
    was: str = ""
    """Of a setting: the value before, as Knob.value_text has it."""
    becomes: str = ""
    """The value since."""


SETTING = Lifecycle("changing", "changed", together=True)
"""Of every action that changes a setting."""


def change(name: str, was: str, becomes: str, step: int) -> Outcome:
    """The outcome of changing a setting at ``step``."""
    text = f"{name} is {becomes} already" if was == becomes else f"{name} {was} -> {becomes} at step {step}"
    return Outcome(text, was, becomes)


class Action(Protocol):
    """What a command does on one rank, once all ranks have agreed on a step."""

    lifecycle: ClassVar[Lifecycle]

    def refusal(self) -> str:
        """Why this rank cannot do it now; empty: it can. On the agent's thread."""

    def position(self, step: int) -> Position:
        """Where this rank was when ``step`` began, if all have to act in the same place.

        On the command's thread. Raises LookupError with the reason where that is not known.
        """

    def boundary(self, step: int) -> bool:
        """The agreed step, or a later one, begins; returns whether to be called at the next one too.

        On the training thread. What it raises ends the action, not the job.
        """

    def finish(self) -> Outcome:
        """What remains after the last boundary, on the command's own thread. Returns what to report.

        Raises OSError or RuntimeError with the reason where it failed.
        """

    def abandon(self) -> None:
        """The job ends, or the action failed: release everything. On the training thread."""
