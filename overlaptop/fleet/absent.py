"""Ranks that train without an agent, as those that a script starts itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from overlaptop.fleet.snapshot import RankView
from overlaptop.wire.messages import RankInfo


def with_absent(views: Iterable[RankView]) -> tuple[RankView, ...]:
    """These ranks of a job, with those marked that must run on a known host and were never seen there.

    They run, as other ranks of their process group make steps.
    """
    ranks = tuple(views)
    infos = [view.info for view in ranks if view.info is not None and view.last is not None]
    here = {rank for info in infos if info.backend for rank in _of_its_node(info)}
    return tuple(
        replace(view, without_agent=True) if view.info is None and view.rank in here else view
        for view in ranks
    )


def _of_its_node(info: RankInfo) -> range:
    """The ranks of a node are consecutive, as torchrun numbers them."""
    first = info.rank - info.local_rank
    return range(first, first + (info.local_world_size or 0))
