"""Of which ranks the steps are asked for in detail, so that their collectives can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from overlaptop.fleet.snapshot import RankView

MOST_COMPARED = 16
"""Ranks. Of more, the details of all would be megabytes a second."""


def compared(ranks: Sequence[RankView]) -> frozenset[int]:
    """All ranks; none where there are more than MOST_COMPARED."""
    return frozenset(view.rank for view in ranks) if len(ranks) <= MOST_COMPARED else frozenset()
