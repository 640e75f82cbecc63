"""How a rank introduces itself: who it is, where it runs, and how it is measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from overlaptop.agent.placement import Placement
from overlaptop.wire.messages import STEPPED_ASIDE, RankInfo

if TYPE_CHECKING:
    from overlaptop.agent.sources.base import Source  # with torch


def introduction(
    place: Placement,
    pid: int,
    script: str,
    source: Source | None,
    *,
    active: bool,
    stepping: bool,
    device: str,
    backend: str,
    control_allowed: bool,
) -> RankInfo:
    """``active``: the agent has not stepped aside. ``stepping``: torch is there, so steps would be seen."""
    if not active:
        source = None
    torch = sys.modules.get("torch")
    return RankInfo(
        job=place.job,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        host=place.host,
        pid=pid,
        script=script,
        device=device,
        backend=backend,
        source=source.name if source is not None else "none",
        source_reason=source.reason if source is not None else _why_none(active, stepping),
        compute_exact=source.compute_exact if source is not None else False,
        detail_every=source.detail_every if source is not None else 0,
        torch_version=str(getattr(torch, "__version__", "")),
        control_allowed=control_allowed and active,
    )


def _why_none(active: bool, stepping: bool) -> str:
    if not active:
        return STEPPED_ASIDE
    if not stepping:
        return "torch is not loaded yet"
    return "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"
