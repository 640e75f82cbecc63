"""Where a rank stands: how many collectives a group had begun when each of the last steps began.

Ranks that do the same are at the same count, whatever each of them calls a step.
"""

from __future__ import annotations

from typing import Any

MARKS = 4096
"""Steps that are remembered: several seconds of the shortest ones."""


class Standing:
    """One group's counts on this rank. Noted on the training thread, asked about on any."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int] | None] = [None] * MARKS
        """By step, modulo their number: the step and the count."""

    def note(self, step: int, group: Any) -> None:
        """``step`` begins."""
        begun = collectives_begun(group)
        self._marks[step % MARKS] = None if begun is None else (step, begun)

    def at(self, step: int) -> int:
        """The count when ``step`` began. Raises LookupError where that is not known."""
        noted = self._marks[step % MARKS]
        if noted is None or noted[0] != step:
            raise LookupError(f"does not know where it stood when step {step} began")
        return noted[1]


def why_uncounted(group: Any) -> str:
    """Why ranks cannot tell by this group where each of them stands; empty: they can."""
    if collectives_begun(group) is not None:
        return ""
    return "its backend does not count collectives, so that ranks could not tell where each stands"


def collectives_begun(group: Any) -> int | None:
    """How many collectives this rank has begun in a group; None where the backend does not count."""
    try:
        begun: int = group._get_sequence_number_for_group()  # noqa: SLF001 - nothing public tells
    except (AttributeError, RuntimeError):
        return None
    return begun
