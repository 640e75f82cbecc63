"""Where the ranks of a group run, and how fast its collectives are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.exposure import Issued
from overlaptop.timeline.arrivals import Collective

LEAST_BYTES = 1 << 20
"""Smaller ones take their latency, and say nothing of a link."""


def hosts_of(evidence: Evidence, collective: Collective) -> frozenset[str]:
    """Those of its ranks; empty where one of them is not known."""
    infos = [evidence.ranks[part.rank].info for part in collective.parts if part.rank in evidence.ranks]
    hosts = frozenset(info.host if info is not None else "" for info in infos)
    return frozenset() if "" in hosts or len(infos) < len(collective.parts) else hosts


def most_on_a_host(evidence: Evidence) -> int:
    """Ranks of the job on the host with most of them."""
    infos = (view.info for view in evidence.ranks.values())
    return max(Counter(info.host for info in infos if info is not None).values())


def usual_bandwidth(issued: Iterable[Issued]) -> float | None:
    """The median bus bandwidth of those that are large; None where none is."""
    rates = [
        rate
        for each in issued
        if (each.collective.bytes or 0) >= LEAST_BYTES
        and (rate := each.collective.bus_bandwidth) is not None
    ]
    return median(rates) if rates else None
