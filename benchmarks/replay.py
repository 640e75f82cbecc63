"""What the kernels source does with CUPTI's records, a hundred thousand steps of it: time and memory.

Run it as ``python benchmarks/replay.py [--steps 100000]``; no GPU is needed. The records are those of two
bursts on an H200, byte for byte (tests/agent/sources/data/README.md), read again and again, each time a
burst later: CUPTI's buffers, the steps between the marks, the breakdown; and apart from these the look-up
of the collectives, which the source does not do for each burst.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from resource import getpagesize
from typing import Any, Self

import msgspec

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.collective_join import CollectiveLaunch, join
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.layouts import CONCURRENT_KERNEL, Activities
from overlaptop.agent.sources.flight_recorder import launches_of
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import StreamMark, TracedStep, read_steps
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.messages import StepTotals

DATA = Path(__file__).resolve().parent.parent / "tests" / "agent" / "sources" / "data"
NAMES = ("ddp", "fsdp2")

CHUNKS = 100
LIMIT_NS = 1000.0
"""Of the agent's thread, a kernel."""
LIMIT_GROWTH_MIB = 4.0
"""Of resident memory, from one hundredth of the way to its end."""


class Recording(msgspec.Struct, frozen=True):
    """One burst as CUPTI, the marks and the flight recorder told of it."""

    cupti_version: int
    clock_offset_ns: int
    marks: tuple[StreamMark, ...]
    kernel_names: Mapping[int, str] = msgspec.field(name="names")
    """By the address at which CUPTI kept them."""
    groups: Mapping[str, Any]
    """The flight recorder's `pg_config`."""
    entries: Sequence[Mapping[str, Any]]
    """The flight recorder's, the oldest first."""
    buffers: tuple[bytes, ...]
    """The valid bytes of each buffer."""

    @classmethod
    def load(cls, name: str) -> Self:
        """One of NAMES."""
        with gzip.open(DATA / f"{name}.json.gz") as file:
            return msgspec.json.decode(file.read(), type=cls)

    def activities(self) -> Activities:
        """All records of the burst, read as the tracer reads them."""
        return layouts.read(b"".join(self.buffers), layouts.sizes_for(self.cupti_version))

    def names(self, rules: LaneRules) -> KernelNames:
        """The kernels' names, which a recording cannot leave in CUPTI's memory."""
        return KernelNames(rules, lambda address: self.kernel_names[address].encode())

    def launches(self) -> list[CollectiveLaunch]:
        """What the flight recorder tells."""
        return launches_of(self.entries, self.groups)

    def steps(self, rules: LaneRules | None = None) -> list[TracedStep]:
        """The steps of the burst."""
        rules = rules or LaneRules()
        return read_steps(self.activities(), self.marks, self.names(rules), rules, self.clock_offset_ns)


class Replay:
    """One recording, read over and over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._rules = LaneRules()
        self._names = recording.names(self._rules)
        self._launches = recording.launches()  # the source asks every few seconds, not for each burst
        bounds = [mark for mark in recording.marks if mark.edge is None]
        self.steps = len(bounds) - 1
        self._length_ns = bounds[-1].host_ns - bounds[0].host_ns
        self.kernels = int((recording.activities()["kind"] == CONCURRENT_KERNEL).sum())
        self._passes = 0
        self.took_ns = 0
        """Of this thread's CPU time, in all passes."""
        self.join_ns = 0
        """The same for looking up the collectives, which the source does every few seconds only."""

    def once(self) -> list[StepTotals]:
        """The burst once more, later by as many bursts as have been."""
        recording, later_ns = self._recording, self._passes * self._length_ns
        marks = [
            replace(mark, step=mark.step + self._passes * self.steps, host_ns=mark.host_ns + later_ns)
            for mark in recording.marks
        ]
        self._passes += 1
        began_ns = time.thread_time_ns()
        traced = read_steps(
            recording.activities(), marks, self._names, self._rules, recording.clock_offset_ns + later_ns
        )
        totals = [reporter.totals(step, 0, 0) for step in traced]
        read_ns = time.thread_time_ns()
        for step in traced:
            join(step, self._launches)
        self.took_ns += read_ns - began_ns
        self.join_ns += time.thread_time_ns() - read_ns
        return totals


def resident_mib() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * getpagesize() / (1 << 20)


def main() -> int:
    """Print time a kernel and memory on the way; 1 when either is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100_000, help="steps in all (default: %(default)s)")
    options = parser.parse_args()

    replays = [Replay(Recording.load(name)) for name in NAMES]
    steps_a_round = sum(replay.steps for replay in replays)
    kernels_a_round = sum(replay.kernels for replay in replays)
    rounds = max(1, options.steps // (steps_a_round * CHUNKS))

    kernel_ns: list[float] = []
    memory_mib: list[float] = []
    for _ in range(CHUNKS):
        before_ns = sum(replay.took_ns for replay in replays)
        for _ in range(rounds):
            for replay in replays:
                totals = replay.once()
                assert len(totals) == replay.steps, "every step of a recording is whole"
        took_ns = sum(replay.took_ns for replay in replays) - before_ns
        kernel_ns.append(took_ns / (rounds * kernels_a_round))
        memory_mib.append(resident_mib())

    steps, seen = CHUNKS * rounds * steps_a_round, CHUNKS * rounds * kernels_a_round
    median_ns = statistics.median(kernel_ns)
    p5_ns, *_, p95_ns = statistics.quantiles(kernel_ns, n=20)
    grown_mib = memory_mib[-1] - memory_mib[0]
    print(
        f"{steps:,} steps, {seen:,} kernels: median {median_ns:.0f} ns of the agent's thread a kernel, "
        f"5–95 % {p5_ns:.0f}–{p95_ns:.0f} ns, of {CHUNKS} chunks (limit {LIMIT_NS:.0f} ns)"
    )
    for name, replay in zip(NAMES, replays, strict=True):
        passes = CHUNKS * rounds
        print(
            f"  {name}, {replay.kernels:,} kernels in {replay.steps} whole steps and around them: mean "
            f"{replay.took_ns / (passes * replay.kernels):.0f} ns a kernel, and "
            f"{replay.join_ns / (passes * replay.steps) / 1000:.0f} us a step to look up its collectives"
        )
    print(
        f"resident memory at 1 %, 50 %, 100 %: {memory_mib[0]:.1f}, {memory_mib[CHUNKS // 2 - 1]:.1f}, "
        f"{memory_mib[-1]:.1f} MiB; grown by {grown_mib:.1f} MiB (limit {LIMIT_GROWTH_MIB:.0f} MiB)"
    )
    return int(median_ns > LIMIT_NS or grown_mib > LIMIT_GROWTH_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
