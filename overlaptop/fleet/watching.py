"""Selects the ranks that send detailed steps, so that their collectives can be compared."""

from collections.abc import Collection, Sequence
from itertools import islice
from statistics import median

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.waits import WORTH_SHARE

MOST_COMPARED = 16  # Maximum number of ranks. The details of more would be megabytes a second.
_MOST_SUSPECTS, _MOST_OF_NODE = 4, 6
"""Compared ranks that may be late, and ranks of the first one's node. The rest is of other nodes."""
_STEPS, _LEAST_STEPS = 5, 3  # Newest measured steps that show how much of the communication is exposed
_EVERY_NS = 1_000_000_000


class ComparedRanks:
    """All ranks wait for a late one, so it has the least exposed communication, which is known of every
    rank. The chosen ranks stay until another rank has much less.
    """

    def __init__(self) -> None:
        self.ranks: frozenset[int] = frozenset()
        self._looked_ns = 0

    def look(self, views: Sequence[RankView], at_ns: int) -> bool:
        """Choose again if it is time. Return whether ranks were replaced. ``views``: all ranks. ``at_ns``:
        Unix time.
        """
        if len(views) <= MOST_COMPARED:
            self.ranks = frozenset(view.rank for view in views)
            return False
        if self.ranks and 0 <= at_ns - self._looked_ns < _EVERY_NS:
            return False
        self._looked_ns = at_ns
        here = [view for view in views if view.last is not None and not (view.stale or view.ended)]
        suspects = _suspects(here)
        is_here = self.ranks <= {view.rank for view in here}
        if len(self.ranks) == MOST_COMPARED and is_here and self.ranks.issuperset(suspects[:1]):
            return False
        before, self.ranks = self.ranks, _chosen(here or views, suspects[:_MOST_SUSPECTS])
        return bool(before) and before != self.ranks


def _suspects(views: Sequence[RankView]) -> list[int]:
    """Return the ranks with much less exposed communication than the median rank, least first."""
    exposed: list[tuple[float, int]] = []
    steps_ns = []
    for view in views:
        measured = (
            step for step in reversed(view.history) if step.exposed_ns is not None and not step.disturbed
        )
        newest = list(islice(measured, _STEPS))
        if len(newest) >= _LEAST_STEPS:
            exposed.append((median(step.exposed_ns or 0 for step in newest), view.rank))
            steps_ns.append(newest[0].step_ns)
    if not exposed:
        return []
    usual_ns = median(ns for ns, _ in exposed) - WORTH_SHARE * median(steps_ns)
    return [rank for ns, rank in sorted(exposed) if ns <= usual_ns]


def _chosen(views: Sequence[RankView], suspects: Sequence[int]) -> frozenset[int]:
    """Return the suspects, ranks of the first one's node, and ranks at its place on other nodes: ranks at
    one place of all nodes usually share a group, as those of a node do.
    """
    known = {view.rank: view for view in views}
    lead = known[suspects[0]] if suspects else views[0]
    found = list(suspects or [lead.rank])
    if lead.info is not None:
        host, place = lead.info.host, lead.info.local_rank
        places = [(view.rank, view.info) for view in views if view.info is not None]
        found += [rank for rank, at in places if at.host == host and rank not in found][:_MOST_OF_NODE]
        alike = [rank for rank, at in places if at.local_rank == place]
        found += _spread([rank for rank in alike if rank not in found], MOST_COMPARED - len(found))
    found += _spread([rank for rank in known if rank not in found], MOST_COMPARED - len(found))
    return frozenset(found)


def _spread(ranks: Sequence[int], number: int) -> Collection[int]:
    number = max(0, min(number, len(ranks)))
    return [ranks[at * len(ranks) // number] for at in range(number)]
