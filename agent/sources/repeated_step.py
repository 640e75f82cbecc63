"""Names the collectives of steps that repeat those that were looked up.

The flight recorder is read every few seconds at most, but a training loop issues the same collectives in
each step. A step in which the same kernels of NCCL were launched on the same streams between the same
marks, in the same order, as in one that was looked up has issued what that one had, if steps do not take
turns: so nothing is repeated where the steps before that one issued anything else, by the same reading, nor
after the same kernels were once seen to be other collectives. What cannot be seen: a step with the same
kernels but other sizes that comes more rarely than that, until one is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.collective_join import launches_before, launches_in
from overlaptop.agent.sources.kernel_steps import TracedStep

REPEATS = 4
"""Steps before one that was looked up that must have issued what it has."""

_Kernels = tuple[tuple[tuple[str, int, bool], ...], ...]
_Launches = tuple[tuple[CollectiveCall, ...], ...]


class RepeatedStep:
    """What each step issues."""

    def __init__(self) -> None:
        self.forget(0)

    def forget(self, from_step: int) -> None:
        """From this step on others may be issued: a setting has been changed."""
        self.from_step = from_step
        self._kernels: _Kernels = ()
        self._launches: _Launches = ()
        self._ambiguous = False
        """The same kernels have been other collectives."""

    def learn(self, step: TracedStep, launches: Sequence[CollectiveCall]) -> None:
        """Take in a step that was looked up; `launches` as `join` has them, also of the steps before it."""
        kernels = _kernels_of(step)
        if step.step < self.from_step or not any(kernels):
            return
        own = tuple(tuple(map(_timeless, launches_in(interval, launches))) for interval in step.intervals)
        if kernels == self._kernels:
            self._ambiguous = self._ambiguous or own != self._launches
            return
        once = [launch for of_interval in own for launch in of_interval]
        # Of the first one some operations may have been cut off.
        before = launches[1 : launches_before(step.intervals[0].from_unix_ns, launches)]
        if once and [*map(_timeless, before[-REPEATS * len(once) :])] == once * REPEATS:
            self._kernels, self._launches = kernels, own

    def knows(self, step: TracedStep) -> bool:
        """Whether it can be told what this step must have issued."""
        return not self._ambiguous and step.step >= self.from_step and _kernels_of(step) == self._kernels

    def launches(self, step: TracedStep) -> list[CollectiveCall] | None:
        """What this step must have issued, as `join` takes it; None where that cannot be told.

        Without sequence numbers: steps that nobody saw may have issued more.
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
