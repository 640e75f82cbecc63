"""Names the collectives of steps that repeat a step that was looked up.

The flight recorder is read every few seconds at most, but a training loop issues the same collectives in
each step. If a step launches the same NCCL kernels on the same streams between the same marks, in the same
order, as a looked-up step, it issued the same collectives, unless steps alternate. So a looked-up step is
used only if the steps before it issued the same, and never again after the same kernels turned out to be
other collectives. One case goes unseen: a rarer step with the same kernels but other sizes, until it is
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.collective_join import launches_before, launches_in
from overlaptop.agent.sources.kernel_steps import TracedStep

REPEATS = 4
"""Steps before a looked-up one that must have issued the same collectives."""

_Kernels = tuple[tuple[tuple[str, int, bool], ...], ...]
_Launches = tuple[tuple[CollectiveCall, ...], ...]


class RepeatedStep:
    """The collectives that each step issues, if steps repeat."""

    def __init__(self) -> None:
        self.forget(0)

    def forget(self, from_step: int) -> None:
        """From this step on steps may issue others: a setting has changed."""
        self.from_step = from_step
        self._kernels: _Kernels = ()
        self._launches: _Launches = ()
        self._ambiguous = False
        """True if the same kernels have been other collectives."""

    def learn(self, step: TracedStep, launches: Sequence[CollectiveCall]) -> None:
        """Learn from a looked-up step; `launches` as for `join`, including those of the steps before it."""
        kernels = _kernels_of(step)
        if step.step < self.from_step or not any(kernels):
            return
        own = tuple(tuple(map(_timeless, launches_in(interval, launches))) for interval in step.intervals)
        if kernels == self._kernels:
            self._ambiguous = self._ambiguous or own != self._launches
            return
        once = [launch for of_interval in own for launch in of_interval]
        # The first operations of the log may be cut off.
        before = launches[1 : launches_before(step.intervals[0].from_unix_ns, launches)]
        if once and [*map(_timeless, before[-REPEATS * len(once) :])] == once * REPEATS:
            self._kernels, self._launches = kernels, own

    def knows(self, step: TracedStep) -> bool:
        return not self._ambiguous and step.step >= self.from_step and _kernels_of(step) == self._kernels

    def launches(self, step: TracedStep) -> list[CollectiveCall] | None:
        """Return the step's collectives, as `join` takes them; None if unknown.

        They have no sequence numbers: steps that were not seen may have issued more.
        """
        if not self.knows(step):
            return None
        return [
            replace(launch, issued_ns=interval.from_unix_ns)
            for interval, own in zip(step.intervals, self._launches, strict=True)
            for launch in own
        ]


def _kernels_of(step: TracedStep) -> _Kernels:
    return tuple(
        tuple((kernel.name, kernel.stream, kernel.replayed) for kernel in interval.kernels)
        for interval in step.intervals
    )


def _timeless(launch: CollectiveCall) -> CollectiveCall:
    return replace(launch, issued_ns=0, sequence=None)
