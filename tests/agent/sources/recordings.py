"""What the tests of the kernels source read: the recorded bursts, and activities made by hand."""

import functools
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.layouts import (
    ACTIVITY,
    CONCURRENT_KERNEL,
    MEMCPY,
    MEMSET,
    PEER_MEMCPY,
    SYNCHRONIZATION,
    Activities,
)
from overlaptop.agent.sources.flight_recorder import launches_of
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import MARK_WORDS, StreamMark, TracedStep, read_steps
from overlaptop.timeline.lanes import LaneRules

RECORDED = ("ddp", "fsdp2")

GEMM, ALL_REDUCE, ELEMENTWISE, FUSED, SPIN = 1, 2, 3, 4, 5
NAMES = {
    GEMM: b"nvjet_sm90_tst_256x128_64x4",
    ALL_REDUCE: b"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    FUSED: b"_ZN7cutlass13device_kernelINS_4gemm6kernel19Sm90AGGemmUniversalIiEEEEvNT_6ParamsE",
    SPIN: b"_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl",
    ELEMENTWISE: b"_ZN2at6native29vectorized_elementwise_kernelILi8EEvi",
}
"""Address -> name of the kernels in activities made by hand."""


class Recording(msgspec.Struct, frozen=True):
    """One burst as CUPTI, the marks and the flight recorder told of it."""

    cupti_version: int
    clock_offset_ns: int
    marks: tuple[StreamMark, ...]
    kernel_names: Mapping[int, str] = msgspec.field(name="names")  # By the address at which CUPTI kept them
    groups: Mapping[str, Any]  # The flight recorder's `pg_config`
    entries: Sequence[Mapping[str, Any]]  # The flight recorder's, the oldest first
    buffers: tuple[bytes, ...]  # The valid bytes of each buffer

    @classmethod
    def load(cls, name: str) -> Self:
        with gzip.open(Path(__file__).parent / "data" / f"{name}.json.gz") as file:
            return msgspec.json.decode(file.read(), type=cls)

    def activities(self) -> Activities:
        return layouts.read(b"".join(self.buffers), layouts.sizes_for(self.cupti_version))

    def names(self, rules: LaneRules) -> KernelNames:
        """The kernels' names, which a recording cannot leave in CUPTI's memory."""
        return KernelNames(rules, lambda address: self.kernel_names[address].encode())

    def launches(self) -> list[CollectiveCall]:
        return launches_of(self.entries, self.groups)

    def steps(self, rules: LaneRules | None = None) -> list[TracedStep]:
        rules = rules or LaneRules()
        return read_steps(self.activities(), self.marks, self.names(rules), rules, self.clock_offset_ns)


recording = functools.cache(Recording.load)


def names() -> KernelNames:
    return KernelNames(LaneRules(), NAMES.__getitem__)


class Trace:
    """A burst made by hand: each call is one launch, numbered in order."""

    def __init__(self, first_correlation: int = 1) -> None:
        self.marks: list[StreamMark] = []
        self._rows: list[dict[str, int]] = []
        self._correlation = first_correlation

    def mark(self, step, at_ns, edge=None, *, host_ns=None, recorded=True):
        """A mark that the GPU passes at `at_ns`, which the host sets at `host_ns`."""
        host_ns = at_ns if host_ns is None else host_ns
        value = 0xA700_0000 + len(self.marks) + 1
        self.marks.append(StreamMark(value, step, edge, host_ns, host_ns))
        if recorded:
            self.memset(at_ns, at_ns + 2, size=MARK_WORDS * 4, value=value)

    def kernel(self, name, start_ns, end_ns, *, stream=7, device=0, graph=0):
        self._add(CONCURRENT_KERNEL, start_ns, end_ns, name=name, stream=stream, device=device, graph=graph)

    def memcpy(self, start_ns, end_ns, *, stream=7, **fields):
        self._add(MEMCPY, start_ns, end_ns, stream=stream, bytes=64, **fields)

    def peer_copy(self, start_ns, end_ns, *, device=0, from_device=0, to_device=1, stream=9):
        devices = {"device": device, "from_device": from_device, "to_device": to_device}
        self._add(PEER_MEMCPY, start_ns, end_ns, stream=stream, bytes=64, **devices)

    def memset(self, start_ns, end_ns, *, stream=7, size=64, value=0):
        self._add(MEMSET, start_ns, end_ns, stream=stream, bytes=size, value=value)

    def synchronisation(self, start_ns, end_ns, kind):
        """``kind``: CUpti_ActivitySynchronizationType."""
        self._add(SYNCHRONIZATION, start_ns, end_ns, value=kind)

    def _add(self, kind, start_ns, end_ns, **fields):
        self._rows.append(
            {"kind": kind, "start_ns": start_ns, "end_ns": end_ns, "correlation": self._correlation}
            | dict.fromkeys(("from_device", "to_device"), fields.get("device", 0))
            | fields
        )
        self._correlation = (self._correlation + 1) % 2**32

    @property
    def activities(self) -> Activities:
        return _made(self._rows)

    def take(self, ended_by_ns: int) -> Activities:
        """Those that have ended by then, once."""
        ended = [row for row in self._rows if row["end_ns"] <= ended_by_ns]
        self._rows = [row for row in self._rows if row["end_ns"] > ended_by_ns]
        return _made(ended)

    @property
    def earliest_ns(self) -> int:
        """When the first of those began that have not been taken."""
        return min((row["start_ns"] for row in self._rows), default=2**62)


def _made(rows: list[dict[str, int]]) -> Activities:
    made = np.zeros(len(rows), dtype=ACTIVITY)
    for row, fields in zip(made, rows, strict=True):
        for name, value in fields.items():
            row[name] = value
    return made
