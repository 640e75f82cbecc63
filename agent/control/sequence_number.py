"""Where a rank stands: how many collectives a group had begun when each of the last steps began.

Ranks that do the same are at the same count, whatever each of them calls a step.
"""

from __future__ import annotations

from typing import Any

from overlaptop.agent.hooks.process_groups import collectives_begun

MARKS = 4096
"""Steps that are remembered: several seconds of the shortest ones."""


class Standing:
    """One group's counts on this rank. Noted on the training thread, asked about on any."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, tuple[int, ...]] | None] = [None] * MARKS
        """By step, modulo their number: the step and the counts."""

    def note(self, step: int, group: Any) -> None:
        """``step`` begins."""
        begun = collectives_begun(group)
        self._marks[step % MARKS] = None if begun is None else (step, begun)

    def at(self, step: int) -> str:
        """``after 1050 collectives``: where this rank stood when ``step`` began; with several backends the
        count of each. Raises LookupError where that is not known.
        """
        noted = self._marks[step % MARKS]
        if noted is None or noted[0] != step:
            raise LookupError(f"does not know where it stood when step {step} began")
        return f"after {' + '.join(map(str, noted[1]))} collectives"


def why_uncounted(group: Any) -> str:
    """Why ranks cannot tell by this group where each of them stands; empty: they can."""
    if collectives_begun(group) is not None:
        return ""
    return "its backend does not count collectives, so that ranks could not tell where each stands"
