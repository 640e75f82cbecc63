"""Delays one rank in each of a trial's steps, to measure how much longer the job's steps become.

The other ranks only agree on the steps, so that all ranks mark them. The job's work does not change.
"""

from collections import deque
from time import perf_counter_ns, sleep
from typing import Any, ClassVar

from overlaptop.agent.control.action import TRIAL, Action, Outcome
from overlaptop.agent.control.two_phase_commit import SHARE_OF_TIMEOUT
from overlaptop.agent.hooks.process_groups import shortest_timeout_s
from overlaptop.timeline.averages import median
from overlaptop.wire import commands
from overlaptop.wire.commands import HOST, PLACES, Command

SPIN_NS = 150_000  # A sleep ends about 50 µs late, so the host spins for the last part
CYCLES_PER_NS = 1.7  # Of a GPU's clock, until a first delay has been timed


class HostDelay:
    """Delays this rank when called, on the training thread, which sleeps; times each delay."""

    def __init__(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._timed_ns: list[float] = []

    @property
    def mean_ns(self) -> float | None:
        return sum(self._timed_ns) / len(self._timed_ns) if self._timed_ns else None

    def refusal(self) -> str:
        return ""

    def __call__(self) -> None:
        begin_ns = perf_counter_ns()
        if self._delay_ns > SPIN_NS:
            sleep((self._delay_ns - SPIN_NS) / 1e9)
        while perf_counter_ns() - begin_ns < self._delay_ns:
            pass
        self._timed_ns.append(perf_counter_ns() - begin_ns)

    def settle(self) -> None:
        """Time the delays that have ended; never waits."""


class GpuDelay(HostDelay):
    """Delays by a kernel that spins on the current stream for a number of cycles. Each finished delay is
    timed to learn the cycles of a nanosecond.
    """

    cycles_per_ns: ClassVar[float] = CYCLES_PER_NS
    """Median of this process's delays: a late host makes a spin look longer."""

    def __init__(self, delay_ns: int) -> None:
        super().__init__(delay_ns)
        self._rates: list[float] = []
        self._spins: deque[tuple[int, Any, Any]] = deque()

    def refusal(self) -> str:
        import torch

        return "" if torch.cuda.is_initialized() else "it computes on no GPU"

    def __call__(self) -> None:
        import torch

        self.settle()
        cycles = round(self._delay_ns * self.cycles_per_ns)
        before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        torch.cuda._sleep(cycles)  # noqa: SLF001 - there is no public way
        behind.record()
        self._spins.append((cycles, before, behind))

    def settle(self) -> None:
        while self._spins and self._spins[0][2].query():
            cycles, before, behind = self._spins.popleft()
            spun_ns = before.elapsed_time(behind) * 1e6
            self._timed_ns.append(spun_ns)
            self._rates.append(cycles / max(1.0, spun_ns))
            GpuDelay.cycles_per_ns = median(self._rates)


class DelayTrial(Action):
    """One rank's part in the trial of a delay."""

    acts = "trying"
    done = "tried"
    mark = TRIAL

    def __init__(self, delay: HostDelay | None, whose: str, delay_ns: int, steps: int) -> None:
        """``delay``: None on ranks that are not delayed. ``whose``: the delayed part, for the report."""
        self._delay = delay
        self._whose = whose
        self._delay_ns = delay_ns
        self._steps = steps
        self._end: int | None = None
        self._delayed_step = -1

    def refusal(self) -> str:
        """Why this delay is refused, above all if it might look like a hang."""
        if (timeout_s := shortest_timeout_s()) is not None:
            most_s = timeout_s * SHARE_OF_TIMEOUT
            if self._delay_ns > most_s * 1e9:
                return (
                    f"its collectives time out after {timeout_s:g} s: a delay may take {most_s:g} s at most"
                )
        return self._delay.refusal() if self._delay is not None else ""

    def changes_settings(self, step: int) -> bool:  # noqa: ARG002 - a delay changes none
        return False

    def boundary(self, step: int) -> bool:
        if self._end is None:
            self._end = step + self._steps
        if step >= self._end:
            if self._delay is not None:
                self._delay.settle()
            return False
        if self._delay is not None and step != self._delayed_step:
            self._delayed_step = step  # set first: a delay that the job interrupts is not repeated
            self._delay()
        return True

    def finish(self) -> Outcome:
        if self._delay is None:
            return Outcome("")
        mean_ns = self._delay.mean_ns
        if mean_ns is None:
            raise RuntimeError("no delay could be timed: the trial was too short")
        text = f"{self._whose} was delayed by {mean_ns / 1e6:.3g} ms a step, in {self._steps} steps"
        return Outcome(text, "0", str(round(mean_ns)))


def make_delay(command: Command, rank: int, world_size: int) -> DelayTrial:
    """Make this rank's part in a delay trial. Raises ValueError with one line if there is no such rank."""
    delayed, delay_ns, place, steps = (
        commands.argument(command, name) for name in ("rank", "delay_ns", "place", "steps")
    )
    if delayed >= world_size:
        raise ValueError(f"there is no rank {delayed}: the job has {world_size}")
    delay = None
    if delayed == rank:
        delay = HostDelay(delay_ns) if place == HOST else GpuDelay(delay_ns)
    return DelayTrial(delay, f"its {PLACES[place]}", delay_ns, steps)
