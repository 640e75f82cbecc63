"""How many collectives a group had begun when each of the last steps began, on this rank.

Ranks that have done the same have the same counts, whatever each of them calls a step.
"""

from __future__ import annotations

from typing import Any

from overlaptop.agent.hooks.process_groups import collectives_begun

REMEMBERED_STEPS = 4096
"""Several seconds of the shortest ones."""


class SequenceNumbers:
    """One group's counts on this rank. Noted on the training thread, read on any."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, tuple[int, ...]] | None] = [None] * REMEMBERED_STEPS
        """By step, modulo their number: the step and the counts."""

    def note(self, step: int, group: Any) -> None:
        """``step`` begins."""
        begun = collectives_begun(group)
        self._noted[step % REMEMBERED_STEPS] = None if begun is None else (step, begun)

    def at(self, step: int) -> str:
        """``after 1050 collectives``: the count when ``step`` began; with several backends that of each.

        Raises LookupError where it is not known.
        """
        noted = self._noted[step % REMEMBERED_STEPS]
        if noted is None or noted[0] != step:
            raise LookupError(f"does not know where it stood when step {step} began")
        return f"after {' + '.join(map(str, noted[1]))} collectives"


def why_uncounted(group: Any) -> str:
    """Why ranks cannot compare their positions by this group's counts; empty: they can."""
    if collectives_begun(group) is not None:
        return ""
    return "its backend does not count collectives, so that ranks could not tell where each stands"
