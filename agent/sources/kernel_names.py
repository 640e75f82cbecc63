"""What the names of kernels tell: the lane, and of NCCL's which collective. Each is looked at once."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlaptop.timeline.lanes import MAX_LOOK_ALIKES, Lane, LaneRules

LANES = tuple(Lane)
MAX_NAMES = 65_536

# ncclDevKernel_AllReduce_Sum_bf16_RING_LL, ncclSymkDevKernel_AllGather_LL, and before NCCL 2.18
# ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t. Generic serves what has no kernel of its own.
_NCCL = re.compile(r"nccl(?:Dev|Symk)?(?:Dev)?Kernel_([A-Za-z]+)")
_MANGLED = re.compile(r"_Z(\d+)")


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel's name and what follows from it."""

    text: str
    """Without its arguments."""
    lane: Lane
    nccl: str | None
    """Which collective, in NCCL's words: ``AllReduce``, ``SendRecv``, ``Generic``; None for all others."""


class KernelNames:
    """Names by the addresses at which CUPTI keeps them."""

    def __init__(self, rules: LaneRules, read: Callable[[int], bytes] = ctypes.string_at) -> None:
        """``read(address)`` gives the name there, as bytes; by default what lies in memory."""
        self._rules = rules
        self._read = read
        self._known: dict[int, KernelName] = {}
        self.look_alikes: set[str] = set()
        """What of the names of kernels that compute looks like communication (lanes.py)."""

    def look_up(self, addresses: NDArray[np.uint64]) -> tuple[list[KernelName], NDArray[np.intp]]:
        """The different names at these addresses (shape (n,)), and for each address which one (n,)."""
        unique, which = np.unique(addresses, return_inverse=True)
        if len(self._known) > MAX_NAMES:  # a job that compiles kernels without end
            self._known.clear()
        return [self._known.get(address) or self._learn(address) for address in unique.tolist()], which

    def _learn(self, address: int) -> KernelName:
        raw = self._read(address).decode(errors="replace") if address else ""
        nccl = _NCCL.search(raw)
        name = KernelName(_plain(raw), self._rules.lane(raw, "kernel"), nccl.group(1) if nccl else None)
        self._known[address] = name
        if len(self.look_alikes) < MAX_LOOK_ALIKES and (part := self._rules.look_alike(raw)):
            self.look_alikes.add(part)
        return name


def _plain(raw: str) -> str:
    """A function's name out of its mangled or demangled signature; as it is where that is not simple."""
    mangled = _MANGLED.match(raw)
    if mangled:
        return raw[mangled.end() : mangled.end() + int(mangled.group(1))]
    return raw.partition("(")[0]
