"""What the kernels source costs a job, switched on and off while it runs: interleaved blocks of steps.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/toggled.py [--rounds 10] [--block 100] \
        [--settle 15] [--modes agent,back-to-back,profiler] script.py [args]

Each round has one block of steps with tracing off, and one in each mode, in an order that rotates; each
block's step time is divided by that of its round's block with tracing off. A block's first steps, in which
the CPU regains its lead over the GPU, do not count. With tracing off the hooks are still there, and do
nothing; overhead.py compares with whole jobs that have no agent at all.

- ``agent``: bursts as often as by default, with nobody watching.
- ``back-to-back``: the next burst as soon as the last has been read.
- ``profiler``: torch.profiler, CUDA activity only, its start and stop not counted.

A launch-bound job has no lead to regain, and its steps vary by a tenth: many short blocks tell more there
(``--rounds 100 --block 12 --settle 2``). The interval is that of the median, by resampling.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from typing import Any

import torch
from blocks import Blocks, interval

import overlaptop.agent
from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.sources.bursts import Schedule
from overlaptop.agent.sources.kernels import KernelsSource

MODES = ("agent", "back-to-back", "profiler")


class Toggler(Blocks):
    """Switches modes at the ends of blocks."""

    def __init__(self, rounds: int, block: int, settle: int, modes: list[str]) -> None:
        super().__init__(["off", *modes], rounds, block, settle)
        self._profile: Any = None
        self._schedules = {"agent": Schedule(None), "back-to-back": Schedule(1)}
        self._chance = random.Random(0)  # the same on all ranks, whose bursts go together

    def thread(self) -> Thread | None:
        """The one that reads the records."""
        agent = overlaptop.agent._agent
        return agent._thread if agent is not None else None

    def begin(self, way: str) -> None:
        """Let the source trace as often as the mode does, or torch.profiler begin."""
        source = the_source()
        if way == "profiler":
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profile.__enter__()
        elif way != "off":
            source._schedule = self._schedules[way]
            # The next burst falls due anywhere within its period, and so perhaps not in this block.
            source._schedule._began_s = now_ns() / 1e9 - self._chance.random() * grid_s(source._schedule)
            source.resume()

    def end(self, way: str) -> None:
        """Have nothing trace."""
        if way == "profiler":
            self._profile.__exit__(None, None, None)
            self._profile = None
        the_source().pause()

    def report(self) -> None:
        """A line for each mode."""
        print(
            f"{'mode':<14}{'step, median':>14}{'ratio, median':>16}{'95 % interval':>22}{'range':>22}"
            f"{'CPU of agent':>14}"
        )
        for way in self.step_ms:
            ratios = [ms / off for ms, off in zip(self.step_ms[way], self.step_ms["off"], strict=True)]
            low, high = interval(ratios)
            print(
                f"{way:<14}{statistics.median(self.step_ms[way]):>11.2f} ms"
                f"{statistics.median(ratios):>16.4f}{low:>13.4f} .. {high:.4f}"
                f"{min(ratios):>13.4f} .. {max(ratios):.4f}"
                f"{statistics.median(self.cpu[way]):>10.2%}",
                flush=True,
            )


def the_source() -> KernelsSource:
    """The kernels source of this process's agent."""
    agent = overlaptop.agent._agent
    source = agent._measuring.source if agent is not None else None
    if not isinstance(source, KernelsSource):
        raise SystemExit(f"the kernels source is not at work here: {source and source.reason}")
    return source


def grid_s(schedule: Schedule) -> float:
    """From one burst to the next, as the schedule would have it by what it has learnt."""
    period_s = schedule.period_s(watched=False)
    return 2.0 ** math.ceil(math.log2(period_s)) if period_s else 0.0


def main() -> None:
    """Run the script given on the command line, toggling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--block", type=int, default=100, metavar="STEPS")
    parser.add_argument(
        "--settle", type=int, default=15, metavar="STEPS", help="of a block, that do not count"
    )
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="args")
    options = parser.parse_args()
    toggler = Toggler(options.rounds, options.block, options.settle, options.modes.split(","))
    toggler.run(options.script, options.words)


if __name__ == "__main__":
    main()
