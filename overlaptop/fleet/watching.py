"""Selects the ranks that send detailed steps, so that their collectives can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from overlaptop.fleet.snapshot import RankView

MOST_COMPARED = 16
"""Maximum number of ranks. The details of more would be megabytes a second."""


def compared(ranks: Sequence[RankView]) -> frozenset[int]:
    """Return all ranks, or none if there are more than MOST_COMPARED."""
    return frozenset(view.rank for view in ranks) if len(ranks) <= MOST_COMPARED else frozenset()
