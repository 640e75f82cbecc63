"""What ``overlaptop estimate`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class OverlapQuestion:
    """What a step takes by how much of its communication is hidden."""

    compute_ns: int
    comm_ns: int
    overlap: float | None
    """None: only the two ends, nothing hidden and as much as can be."""


@dataclass(frozen=True, slots=True)
class BucketsQuestion:
    """How large DDP's buckets should be."""

    gradient_bytes: int
    bandwidth_bytes_per_s: float
    """Of the bus where `ranks` is known, else of the algorithm, as nccl-tests names them."""
    latency_ns: int
    backward_ns: int | None
    ranks: int | None


@dataclass(frozen=True, slots=True)
class PrefetchQuestion:
    """How many layers ahead FSDP should gather."""

    all_gather_ns: int
    layer_ns: int
    slowest_all_gather_ns: int | None


Question: TypeAlias = OverlapQuestion | BucketsQuestion | PrefetchQuestion
