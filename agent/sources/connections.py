"""Whether the streams of a process share too few hardware connections for events to time them.

Streams of one connection are served in the order of their launches. A timing event behind a collective
then holds back what the compute stream was given after it: the events destroy the overlap that they measure
(pytorch issue 143890, TransformerEngine issue 1353). There is one with CUDA_DEVICE_MAX_CONNECTIONS=1, and
there are two for each client of MPS by default. Where that is not known, it is seen in the marks that the
compute stream was given behind an asynchronous collective. Each passes just as that collective ends, or so
long after its end as what is computed between takes, whatever the collective took. Where nothing is held
back, it passes so long after the mark before.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict, deque
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from overlaptop.agent.sources.assemble import RecordedStep
from overlaptop.timeline.averages import median

ONE_CONNECTION = (
    "phases only: with CUDA_DEVICE_MAX_CONNECTIONS=1, events around collectives would destroy the overlap "
    "they measure"
)
MPS_CONNECTIONS = (
    "phases only: under MPS a process has two hardware connections, too few for events around collectives: "
    "set CUDA_DEVICE_MAX_CONNECTIONS=8"
)
FEW_CONNECTIONS = (
    "phases only: streams share too few hardware connections for events around collectives (MPS?): "
    "set CUDA_DEVICE_MAX_CONNECTIONS=8"
)
MIN_PAIRS, MIN_COMPARED_PAIRS = 12, 48
"""Of marks, for those that pass just as a collective ends, and for how their times vary."""
MAX_STEPS = 12
HELD_BACK_SHARE = 0.7
"""Of the pairs, where the connections are few."""
MIN_APART_NS = 300_000
"""Marks that pass sooner one after the other say nothing."""
JUST_AS_NS, JUST_AS_SHARE = 50_000, 0.05
"""A mark passes just as a collective ends if it passes no later than so after it, or than such a share of
the time since the mark before."""
STEADIER = 3
"""So much less than the time between marks must vary what lies behind the collective's end."""


def too_few() -> str:
    """Why this process is known to have too few connections; empty: it is not."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections is None:
        return MPS_CONNECTIONS if under_mps() else ""
    return ONE_CONNECTION if connections == "1" else ""


def under_mps() -> bool:
    """Whether there is the socket of an MPS daemon, to which CUDA connects each process."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
    with suppress(OSError):
        return stat.S_ISSOCK(Path(folder, "control").stat().st_mode)
    return False


class Pair(NamedTuple):
    """Two marks that follow each other in a step."""

    apart_ns: int
    behind_ns: int
    """How long behind the end of the first one's collective the second one passed; below 0: before it."""

    @property
    def just_as(self) -> bool:
        """Whether it passed just as the collective ended."""
        return self.behind_ns <= max(JUST_AS_NS, JUST_AS_SHARE * self.apart_ns)


class Connections:
    """What the marks of recorded steps say of the connections."""

    def __init__(self) -> None:
        self.few = False
        """Whether the compute stream is held back by collectives beside it."""
        self._pairs: defaultdict[int, deque[Pair]] = defaultdict(lambda: deque(maxlen=MAX_STEPS))
        """By their place in the step."""
        self._new = 0

    def note(self, step: RecordedStep[int]) -> None:
        """Take in a recorded step; times in ns on the device's timeline."""
        beside = [
            each
            for each in step.collectives
            if each.begins_on_compute and not each.on_compute and not each.lost
        ]
        for place, (earlier, later) in enumerate(pairwise(beside)):
            apart_ns = later.begin - earlier.begin
            if apart_ns < MIN_APART_NS or earlier.end is None:
                continue
            if any(earlier.begin <= begin < later.begin for begin, _, _ in step.waits):
                continue  # the job itself waits for it there
            self._pairs[place].append(Pair(apart_ns, later.begin - earlier.end))
            self._new += 1
        if self._new >= MIN_PAIRS and not self.few:
            self._new = 0
            self.few = self._held_back()

    def _held_back(self) -> bool:
        pairs = list(chain.from_iterable(self._pairs.values()))
        behind = [pair for pair in pairs if pair.behind_ns >= -JUST_AS_NS]
        least = HELD_BACK_SHARE * len(pairs)
        if len(behind) < least:
            return False
        if sum(pair.just_as for pair in behind) >= least:
            return True
        apart_ns, behind_ns = (self._variation(at) for at in range(2))
        return len(pairs) >= MIN_COMPARED_PAIRS and behind_ns * STEADIER <= apart_ns >= JUST_AS_NS

    def _variation(self, field: int) -> float:
        """The median of how far the pairs' times are from the median of their place."""
        far_ns: list[float] = []
        for pairs in self._pairs.values():
            usual_ns = median([pair[field] for pair in pairs])
            far_ns += (abs(pair[field] - usual_ns) for pair in pairs)
        return median(far_ns)
