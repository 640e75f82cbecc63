"""What measuring costs a job, and how often it measures, switched on and off while the job runs.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/toggled.py [--rounds 10] [--block 100] \
        [--settle 15] [--learn 400] [--modes watched,idle,profiler] script.py [args]

Each round has one block of steps with measuring off, and one in each mode, in an order that rotates; each
block's step time is divided by that of its round's block with measuring off. A block's first steps, in
which the CPU regains its lead over the GPU, do not count. With measuring off the hooks are still there,
and do nothing; pairs.py compares with whole jobs that have no agent at all.

- ``watched``: as when a dashboard watches the rank; each block asks for a burst.
- ``idle``: as when nobody watches.
- ``profiler``: torch.profiler, CUDA activity only, its start and stop not counted.

A launch-bound job has no lead to regain, and its steps vary by a tenth: many short blocks tell more there
(``--rounds 100 --block 12 --settle 2``). The interval is that of the median, by resampling.
"""

import argparse
import os
import runpy
import statistics
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from pairs import RATIO_HEADINGS, in_turn, print_head, print_row, ratio_cells
from torch.optim.optimizer import register_optimizer_step_post_hook

import overlaptop.agent
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.reporting.sender import Sender
from overlaptop.agent.sources.base import StepSpans
from overlaptop.agent.sources.kernels import COST, KernelsSource
from overlaptop.agent.sources.schedule import Schedule
from overlaptop.agent.sources.window import LEAD_STEPS
from overlaptop.wire.joining import Watch

NEVER = 1 << 62  # Steps from one measured step to the next
MODES = ("watched", "idle", "profiler")


class Toggler:
    """Switches modes at the ends of blocks of steps, and times each block by CUDA events."""

    def __init__(self, rounds: int, block: int, settle: int, learn: int, modes: list[str]) -> None:
        """``block``: in steps; the first ``settle`` do not count. ``learn``: steps before all."""
        ways = ["off", *modes]
        self._order = list(chain.from_iterable(in_turn(ways, rounds)))
        self._block, self._settle, self._warmup = block, settle, learn
        self._seen = 0
        self._marks: list[torch.cuda.Event] = []
        self._cpu_s = self._began_s = 0.0
        self.step_ms: dict[str, list[float]] = {way: [] for way in ways}  # A block's, by mode and round
        self.cpu: dict[str, list[float]] = {way: [] for way in ways}
        """The share of a core that the thread which reads the records takes."""
        self._profile: Any = None
        self._way = "watched"
        self._block_number = 0
        self._never = Schedule(NEVER, COST, LEAD_STEPS)
        self._steps: Counter[str] = Counter()
        self._measured_steps: Counter[str] = Counter()
        # What the hub has to say of dashboards does not count here.
        Sender.wanted = property(  # type: ignore[assignment]
            lambda _: Watch(self._way == "watched", self._block_number), lambda *_: None
        )

    def run(self, script: str, words: list[str]) -> None:
        """Run a script with as many steps as the blocks take."""
        register_optimizer_step_post_hook(self._after_step)
        steps = self._warmup + len(self._order) * self._block + 1
        sys.argv = [script, *words, "--steps", str(steps)]
        runpy.run_path(script, run_name="__main__")

    def _after_step(self, *_: Any) -> None:
        self._seen += 1
        block, within = divmod(self._seen - self._warmup, self._block)
        if block < 0 or block > len(self._order):
            return
        if within == 0:
            if block > 0:
                self._end_block(self._order[block - 1])
            if block < len(self._order):
                self.begin(self._order[block])
                dist.barrier()
                torch.cuda.synchronize()
            elif os.environ.get("RANK", "0") == "0":
                self.report()
        elif within == self._settle:
            self._mark()
            self._cpu_s, self._began_s = thread_cpu_s(), monotonic()

    def _end_block(self, way: str) -> None:
        self._mark()
        torch.cuda.synchronize()
        first, last = self._marks
        self._marks.clear()
        self.step_ms[way].append(first.elapsed_time(last) / (self._block - self._settle))
        self.cpu[way].append((thread_cpu_s() - self._cpu_s) / (monotonic() - self._began_s))
        self.end(way)

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def begin(self, way: str) -> None:
        """Let the source measure as often as the mode does, or torch.profiler begin."""
        self._way = way
        self._block_number += 1
        source = the_source()
        if self._block_number == 1:
            self._learnt = source.schedule
            self._take = source.take
            source.take = self._counted  # type: ignore[method-assign]
            self._measure_nothing()
        if way == "profiler":
            source.pause()
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profile.__enter__()
        elif way != "off":
            self._learnt.cost.skip()
            source.schedule = self._learnt

    def end(self, way: str) -> None:
        """Have nothing measure."""
        if way == "profiler":
            self._profile.__exit__(None, None, None)
            self._profile = None
            the_source().resume()
        self._measure_nothing()

    def _measure_nothing(self) -> None:
        # Not by pausing, which gives CUPTI and its buffers back: to get them again is no part of the cost.
        source = the_source()
        source.schedule = self._never
        if source._window is not None:
            source._window.end()

    def _counted(self) -> list[StepSpans]:
        steps = self._take()
        self._steps[self._way] += len(steps)
        self._measured_steps[self._way] += sum(step.detailed for step in steps)
        return steps

    def report(self) -> None:
        """A line for each mode."""
        print_head("mode", *RATIO_HEADINGS, "CPU", "measured")
        for way, step_ms in self.step_ms.items():
            measured = self._measured_steps[way] / max(1, self._steps[way])
            cpu = statistics.median(self.cpu[way])
            print_row(way, *ratio_cells(step_ms, self.step_ms["off"]), f"{cpu:.2%}", f"{measured:.1%}")
        cost = self._learnt.cost.estimate()
        known = "not known" if cost is None else f"{cost.share:.2%} ± {cost.error * 100:.2f}"
        touched = f"{self._learnt.touched_share:.1%} of steps are touched"
        print(f"own cost: of a step in which the source works: {known}; {touched}", flush=True)


def thread_cpu_s() -> float:
    """CPU time so far of the agent's thread; 0 where there is none yet."""
    agent = overlaptop.agent._agent
    thread: Thread | None = agent._thread if agent is not None else None
    if thread is None or thread.native_id is None:
        return 0.0
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def the_source() -> KernelsSource:
    """The kernels source of this process's agent."""
    agent = overlaptop.agent._agent
    source = agent._measuring.source if agent is not None else None
    if not isinstance(source, KernelsSource):
        raise SystemExit(f"the kernels source is not at work here: {source and source.reason}")
    return source


def main() -> None:
    """Run the script given on the command line, toggling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--block", type=int, default=100, metavar="STEPS")
    parser.add_argument("--settle", type=int, default=15, metavar="STEPS", help="of a block, not counted")
    parser.add_argument("--learn", type=int, default=400, metavar="STEPS", help="before the first block")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="args")
    options = parser.parse_args()
    modes = options.modes.split(",")
    toggler = Toggler(options.rounds, options.block, options.settle, options.learn, modes)
    toggler.run(options.script, options.words)


if __name__ == "__main__":
    main()
