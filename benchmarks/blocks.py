"""Times a job's steps in blocks of several ways to run it, while it runs: what a benchmark fills with ways.

Each round has one block of steps in each way, in an order that turns, so that a drift of the machine does
not count. A block's first steps, in which the CPU regains its lead over the GPU, do not count either.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from pairs import in_turn
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlaptop.agent.isolation.threads import Thread

WARMUP_STEPS = 40


def add_options(parser: argparse.ArgumentParser, *, rounds: int, block: int, settle: int) -> None:
    """Of the blocks, with these defaults, and of the script that is run."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--block", type=int, default=block, metavar="STEPS")
    parser.add_argument(
        "--settle", type=int, default=settle, metavar="STEPS", help="of a block, that do not count"
    )
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="args")


class Blocks:
    """Goes from block to block at the job's steps, and times each by CUDA events."""

    def __init__(
        self, ways: Sequence[str], rounds: int, block: int, settle: int, warmup: int = WARMUP_STEPS
    ) -> None:
        """``block``: in steps, of which the first ``settle`` do not count; ``warmup``: steps before all."""
        self._order = list(chain.from_iterable(in_turn(ways, rounds)))
        self._block, self._settle, self._warmup = block, settle, warmup
        self._seen = 0
        self._marks: list[torch.cuda.Event] = []
        self._cpu_s = self._began_s = 0.0
        self.step_ms: dict[str, list[float]] = {way: [] for way in ways}
        """A block's, by way and round."""
        self.cpu: dict[str, list[float]] = {way: [] for way in ways}
        """The thread's share of a core."""

    def thread(self) -> Thread | None:
        """The agent's thread whose CPU time counts; None: it does not run."""
        raise NotImplementedError

    def begin(self, way: str) -> None:
        """Have the job run in this way from here on."""
        raise NotImplementedError

    def end(self, way: str) -> None:
        """A block of this way is over."""

    def report(self) -> None:
        """All blocks are over; on rank 0."""
        raise NotImplementedError

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
                self._end(self._order[block - 1])
            if block < len(self._order):
                self.begin(self._order[block])
                dist.barrier()
                torch.cuda.synchronize()
            elif os.environ.get("RANK", "0") == "0":
                self.report()
        elif within == self._settle:
            self._mark()
            self._cpu_s, self._began_s = thread_cpu_s(self.thread()), monotonic()

    def _end(self, way: str) -> None:
        self._mark()
        torch.cuda.synchronize()
        first, last = self._marks
        self._marks.clear()
        self.step_ms[way].append(first.elapsed_time(last) / (self._block - self._settle))
        self.cpu[way].append((thread_cpu_s(self.thread()) - self._cpu_s) / (monotonic() - self._began_s))
        self.end(way)

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)


def thread_cpu_s(thread: Thread | None) -> float:
    """CPU time so far of one of the agent's threads; 0 where there is none yet."""
    if thread is None or thread.native_id is None:
        return 0.0
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
