"""Whether the streams of a process share too few hardware connections for events to time them.

Streams of one connection are served in the order of their launches. A timing event behind a collective
then holds back what the compute stream was given after it: the events destroy the overlap that they measure
(pytorch issue 143890, TransformerEngine issue 1353). There is one with CUDA_DEVICE_MAX_CONNECTIONS=1, and
there are two for each client of MPS by default. It is seen in the marks: each one that the compute stream
was given behind an asynchronous collective passes just as that collective ends.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from overlaptop.agent.sources.assemble import RecordedStep

ONE_CONNECTION = (
    "phases only: with CUDA_DEVICE_MAX_CONNECTIONS=1, events around collectives would destroy the overlap "
    "they measure"
)
FEW_CONNECTIONS = (
    "phases only: streams share too few hardware connections for events around collectives (MPS?): "
    "set CUDA_DEVICE_MAX_CONNECTIONS=8"
)
MIN_PAIRS, MAX_PAIRS = 12, 64
HELD_BACK_SHARE = 0.7
"""Of the pairs, where the connections are few."""
MIN_APART_NS = 300_000
"""Marks that pass sooner one after the other say nothing."""
JUST_AS_NS, JUST_AS_SHARE = 50_000, 0.05
"""A mark passes just as a collective ends if it passes no later than so after it, or than such a share of
the time since the mark before."""


class Connections:
    """What the marks of recorded steps say of the connections."""

    def __init__(self) -> None:
        self._held_back: deque[bool] = deque(maxlen=MAX_PAIRS)

    @property
    def few(self) -> bool:
        """Whether the compute stream is held back by collectives beside it."""
        pairs = len(self._held_back)
        return pairs >= MIN_PAIRS and sum(self._held_back) >= HELD_BACK_SHARE * pairs

    def note(self, step: RecordedStep[int]) -> None:
        """Take in a recorded step; times in ns on the device's timeline."""
        beside = [
            each
            for each in step.collectives
            if each.begins_on_compute and not each.on_compute and not each.lost
        ]
        for earlier, later in pairwise(beside):
            apart_ns = later.begin - earlier.begin
            if apart_ns < MIN_APART_NS or earlier.end is None:
                continue
            if any(earlier.begin <= begin < later.begin for begin, _, _ in step.waits):
                continue  # the job itself waits for it there
            late_ns = later.begin - earlier.end
            self._held_back.append(-JUST_AS_NS <= late_ns <= max(JUST_AS_NS, JUST_AS_SHARE * apart_ns))
