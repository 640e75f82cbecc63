"""What an action is: the part of a command that this rank does at the step on which all have agreed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from overlaptop.agent.control.two_phase_commit import RESOLVE_S, Mark

RESOLVE_TOGETHER_S = 240.0
"""Where a rank that did not act while others do would end the job in a hang: better to stand for a while,
though never for so long that the others' collectives give up (see seat.Participant.stands_s)."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """How a kind of action goes, in the states that are reported, and what it needs to go well."""

    acts: str
    """From the agreed step on."""
    done: str
    finishes: str = ""
    """While `Action.finish` runs; empty: that takes no time, and the last boundary ends the disturbance."""
    together: bool = False
    """If some ranks acted and others did not, they would wait for each other for ever."""

    @property
    def resolve_s(self) -> float:
        """The longest that the job stands at the agreed step where this rank does not know the decision, if
        the others wait for so long.
        """
        return RESOLVE_TOGETHER_S if self.together else RESOLVE_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action."""

    text: str
    """For the screen."""
    was: str = ""
    """Of a setting: the value before, as Knob.value_text has it."""
    becomes: str = ""
    """The value since."""


class Action(Protocol):
    """What a command does on one rank, once all ranks have agreed on a step."""

    course: ClassVar[Lifecycle]

    def refusal(self) -> str:
        """Why this rank cannot do it just now; empty: it can. On the agent's thread."""

    def mark(self, step: int) -> Mark:
        """Where this rank stood when ``step`` began, if all have to act in the same place.

        On the command's thread. Raises LookupError with the reason where that is not known.
        """

    def boundary(self, step: int) -> bool:
        """The agreed step, or a later one, begins; returns whether to be told of the next one too.

        On the training thread. What it raises ends the action, not the job.
        """

    def finish(self) -> Outcome:
        """What remains after the last boundary, on the command's own thread. Returns what to report.

        Raises OSError or RuntimeError with the reason when it came to nothing.
        """

    def abandon(self) -> None:
        """The job ends, or the action failed: let go of everything. On the training thread."""
