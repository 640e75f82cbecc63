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
import os
import random
import runpy
import statistics
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import overlaptop.agent
from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.bursts import Schedule
from overlaptop.agent.sources.kernels import KernelsSource

MODES = ("agent", "back-to-back", "profiler")
WARMUP_STEPS = 40
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Toggler:
    """Switches modes at the ends of blocks and times the blocks by CUDA events."""

    def __init__(self, rounds: int, block: int, settle: int, modes: list[str]) -> None:
        ways = ["off", *modes]
        self._order = [
            way for turn in range(rounds) for way in (*ways[turn % len(ways) :], *ways[: turn % len(ways)])
        ]
        self._block, self._settle = block, settle
        self._ways = ways
        self._seen = 0
        self._marks: list[torch.cuda.Event] = []
        self._profile: Any = None
        self._schedules = {"agent": Schedule(None), "back-to-back": Schedule(1)}
        self._chance = random.Random(0)  # the same on all ranks, whose bursts go together
        self._cpu_s = self._began_s = 0.0
        self.step_ms: dict[str, list[float]] = {way: [] for way in ways}
        self.agent_cpu: dict[str, list[float]] = {way: [] for way in ways}

    def after_step(self, *_: Any) -> None:
        """Called after each step of the job."""
        self._seen += 1
        block, within = divmod(self._seen - WARMUP_STEPS, self._block)
        if block < 0 or block > len(self._order):
            return
        if within == 0:
            if block > 0:
                self._end(self._order[block - 1])
            if block < len(self._order):
                self._begin(self._order[block])
            elif os.environ.get("RANK", "0") == "0":
                self._print()
        elif within == self._settle:
            self._mark()
            self._cpu_s, self._began_s = agent_cpu_s(), monotonic()

    def _begin(self, way: str) -> None:
        source = the_source()
        if way == "profiler":
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profile.__enter__()
        elif way != "off":
            source._schedule = self._schedules[way]
            # The next burst falls due anywhere within its period, and so perhaps not in this block.
            source._schedule._began_s = now_ns() / 1e9 - self._chance.random() * grid_s(source._schedule)
            source.resume()
        dist.barrier()
        torch.cuda.synchronize()

    def _end(self, way: str) -> None:
        self._mark()
        torch.cuda.synchronize()
        first, last = self._marks
        self._marks.clear()
        self.step_ms[way].append(first.elapsed_time(last) / (self._block - self._settle))
        self.agent_cpu[way].append((agent_cpu_s() - self._cpu_s) / (monotonic() - self._began_s))
        if way == "profiler":
            self._profile.__exit__(None, None, None)
            self._profile = None
        the_source().pause()

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def _print(self) -> None:
        print(
            f"{'mode':<14}{'step, median':>14}{'ratio, median':>16}{'95 % interval':>22}{'range':>22}"
            f"{'CPU of agent':>14}"
        )
        for way in self._ways:
            ratios = [ms / off for ms, off in zip(self.step_ms[way], self.step_ms["off"], strict=True)]
            low, high = interval(ratios)
            print(
                f"{way:<14}{statistics.median(self.step_ms[way]):>11.2f} ms"
                f"{statistics.median(ratios):>16.4f}{low:>13.4f} .. {high:.4f}"
                f"{min(ratios):>13.4f} .. {max(ratios):.4f}"
                f"{statistics.median(self.agent_cpu[way]):>10.2%}",
                flush=True,
            )


def the_source() -> KernelsSource:
    """The kernels source of this process's agent."""
    agent = overlaptop.agent._agent
    source = agent._source if agent is not None else None
    if not isinstance(source, KernelsSource):
        raise SystemExit(f"the kernels source is not at work here: {source and source.reason}")
    return source


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of their median, by 2,000 resamplings."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def grid_s(schedule: Schedule) -> float:
    """From one burst to the next, as the schedule would have it by what it has learnt."""
    period_s = schedule.period_s(watched=False)
    return 2.0 ** math.ceil(math.log2(period_s)) if period_s else 0.0


def agent_cpu_s() -> float:
    """CPU time of the agent's thread so far."""
    thread = next(each for each in threading.enumerate() if each.name == "overlaptop")
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS_PER_S


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
    modes = options.modes.split(",")
    toggler = Toggler(options.rounds, options.block, options.settle, modes)
    register_optimizer_step_post_hook(toggler.after_step)
    steps = WARMUP_STEPS + options.rounds * (len(modes) + 1) * options.block + 1
    sys.argv = [options.script, *options.words, "--steps", str(steps)]
    runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
