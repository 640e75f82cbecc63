"""What to say of a command whose ranks will not all say their last word: not made, or not known.

All ranks act or none does. So while one of them may still have acted, nobody can say that a change was not
made; whoever learns of it later says what is true.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.wire.commands import CHANGES
from overlaptop.wire.messages import UNKNOWN

ANSWER_S = 15.0
"""Longer than ranks wait for each other: past that one that has said nothing will say nothing."""
_ACCEPTED = "accepted"
_FAILED = "failed"


def is_in_doubt(name: str, states: Iterable[str], *, all_ended: bool) -> bool:
    """Whether a command may have been obeyed although ranks were lost before their last word on it.

    Args:
        name: of the command. A capture of which a rank tells nothing is none.
        states: the newest word of each rank that has said anything.
        all_ended: no rank is left that could still say what came of it.
    """
    # A rank says that all have agreed a second before they act: a job that ended before that made nothing.
    return name in CHANGES and (not all_ended or any(state != _ACCEPTED for state in states))


def of_lost(rank: int, *, ended: bool, in_doubt: bool) -> tuple[str, str]:
    """The state and the words of a rank that will say nothing more, or has long said nothing."""
    if in_doubt:
        return UNKNOWN, f"rank {rank} " + ("ended before it had said" if ended else "has not said")
    return _FAILED, f"rank {rank} " + ("ended before it was done" if ended else "does not answer")


def doubt(unknown: Iterable[tuple[int, str]]) -> str:
    """Why it is not known whether a command was obeyed. ``unknown``: rank and text of those in doubt."""
    rank, text = min(unknown, key=lambda each: not each[1].startswith("rank "))
    return text if text.startswith("rank ") else f"rank {rank} cannot tell: {text}"
