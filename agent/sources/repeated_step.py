"""Names the collectives of steps that repeat one whose launches were looked up.

The flight recorder is read only every few seconds, but a training loop issues the same collectives in each
step. A step in which the same kernels of NCCL were launched between the same marks, in the same order, as
in the one that was looked up last has issued what that one had, if sizes do not change from step to step:
so nothing is repeated before two that were looked up agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from overlaptop.agent.sources.collective_join import CollectiveLaunch, issued
from overlaptop.agent.sources.kernel_steps import TracedStep

_Kernels = tuple[tuple[tuple[str, bool, bool], ...], ...]
_Launches = tuple[tuple[CollectiveLaunch, ...], ...]


class RepeatedStep:
    """What was issued in the step that was looked up last."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """What comes next may issue others: a setting has been changed."""
        self._kernels: _Kernels = ()
        self._launches: _Launches = ()
        self._steady = False

    def learn(self, step: TracedStep, launches: Sequence[CollectiveLaunch]) -> None:
        """Take in a step that was looked up; `launches` as `join` has them. One without any kernel of
        NCCL's tells nothing of others.
        """
        kernels = _kernels_of(step)
        if not any(kernels):
            return
        own = []
        for interval in step.intervals:
            first = bisect_left(launches, interval.from_unix_ns, key=issued)
            stop = bisect_left(launches, interval.to_unix_ns, key=issued)
            own.append(tuple(_timeless(launch) for launch in launches[first:stop]))
        self._steady = (kernels, tuple(own)) == (self._kernels, self._launches)
        self._kernels, self._launches = kernels, tuple(own)

    def launches(self, step: TracedStep) -> list[CollectiveLaunch] | None:
        """What this step must have issued, as `join` takes it; None where that cannot be told.

        Without sequence numbers: steps that nobody saw may have issued more.
        """
        if not self._steady or _kernels_of(step) != self._kernels:
            return None
        return [
            replace(launch, unix_ns=interval.from_unix_ns)
            for interval, own in zip(step.intervals, self._launches, strict=True)
            for launch in own
        ]


def _kernels_of(step: TracedStep) -> _Kernels:
    return tuple(
        tuple((kernel.name, kernel.beside_compute, kernel.replayed) for kernel in interval.kernels)
        for interval in step.intervals
    )


def _timeless(launch: CollectiveLaunch) -> CollectiveLaunch:
    return replace(launch, unix_ns=0, call=replace(launch.call, sequence=None))
