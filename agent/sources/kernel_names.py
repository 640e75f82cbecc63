"""Derives lane and NCCL collective from a kernel's name. Each name is examined once."""

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
# ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t. Generic runs collectives without a special kernel.
_NCCL = re.compile(r"nccl(?:Dev|Symk)?(?:Dev)?Kernel_([A-Za-z]+)")
_MANGLED = re.compile(r"_Z(\d+)")


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel's name, and its lane and collective."""

    text: str  # Without its arguments
    lane: Lane
    nccl: str | None
    """Collective in NCCL's names: ``AllReduce``, ``SendRecv``, ``Generic``; None for other kernels."""


class KernelNames:
    """Names by the addresses at which CUPTI keeps them."""

    def __init__(self, rules: LaneRules, read: Callable[[int], bytes] = ctypes.string_at) -> None:
        """``read(address)`` returns the name at an address, as bytes; by default from memory."""
        self._rules = rules
        self._read = read
        self._known: dict[int, KernelName] = {}
        self.look_alikes: set[str] = set()
        """Parts of compute kernels' names that look like communication (lanes.py)."""

    def look_up(self, addresses: NDArray[np.uint64]) -> tuple[list[KernelName], NDArray[np.intp]]:
        """Return the different names at addresses (n,), and the index of each address's name, (n,)."""
        unique, which = np.unique(addresses, return_inverse=True)
        if len(self._known) > MAX_NAMES:  # a job may compile new kernels without end
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
    """Extract the function's name from a mangled or demangled signature; complex ones stay as they are."""
    mangled = _MANGLED.match(raw)
    if mangled:
        return raw[mangled.end() : mangled.end() + int(mangled.group(1))]
    return raw.partition("(")[0]
