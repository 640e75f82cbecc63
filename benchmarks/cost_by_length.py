"""What measuring costs jobs of several step lengths, and how often it measures them: toggled.py for each.

    python benchmarks/cost_by_length.py [--kinds gpu,launch] [--ranks 1,2,4] [--step-ms 20,50,250,1000]

A row for each job and mode as its job ends. Several ranks share the GPUs that are there; under MPS, which
you start yourself, set CUDA_DEVICE_MAX_CONNECTIONS=8. Launch-bound jobs leave most of a GPU idle: under MPS
``--jobs`` of them may run at once, each on CPUs of its own; what they take from each other is the same in
all modes of a job. What does not fit into ``--minutes`` is not run, and a row says so.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import queue
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tables import print_head, print_row
from torchrun import ROOT, job_folder, running, shares_of_cpus, torchrun, why_it_failed

BENCHMARKS = ROOT / "benchmarks"
LEAST_BLOCK, LEAST_LEARN = 11, 64
"""Steps, however long they are: in fewer, a measured one may not end, and the agent not know its cost."""
START_S = 40.0
"""For torchrun, the imports and the job's own calibration."""
WIDTHS = {1: 4096, 2: 512, 4: 512}
"""Of the layers of GPU-bound jobs, by ranks: NCCL sends over loopback where these share a GPU."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job, and the steps of its blocks."""

    kind: str
    """``gpu`` or ``launch``: what bounds it."""
    ranks: int
    step_ms: float
    rounds: int
    block: int
    learn: int
    modes: tuple[str, ...]

    @property
    def takes_s(self) -> float:
        """About as long as the whole job."""
        steps = self.learn + self.rounds * (1 + len(self.modes)) * self.block
        return START_S + steps * self.step_ms / 1e3

    def command(self) -> list[str]:
        """Under torchrun."""
        bound = ["--launch-bound"] if self.kind == "launch" else ["--width", str(WIDTHS[self.ranks])]
        toggled = {
            "modes": ",".join(self.modes), "rounds": self.rounds, "block": self.block,
            "settle": max(1, self.block // 6), "learn": self.learn,
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in toggled.items()]
        job = BENCHMARKS / "jobs" / "sized.py"
        return torchrun(
            self.ranks, BENCHMARKS / "toggled.py", *words, job, "--step-ms", f"{self.step_ms:g}", *bound
        )


def run(case: Case, limit_s: float) -> list[list[str]]:
    """The rows that toggled.py printed, the agent's own account behind the first; or why there are none."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if case.takes_s > limit_s:
        return [["not run: no time left"]]
    with job_folder() as folder:
        environment = os.environ | {"OVERLAPTOP_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        with running(case.command(), cwd=ROOT, env=environment, **pipes) as job:
            try:
                stdout, stderr = (
                    each.decode(errors="replace") for each in job.communicate(timeout=limit_s)
                )
            except subprocess.TimeoutExpired:
                return [[f"not done after {limit_s:.0f} s"]]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in stdout.splitlines()
        if line.startswith(("| off", *(f"| {mode}" for mode in case.modes)))
    ]
    own = [line.removeprefix("own cost: ") for line in stdout.splitlines() if line.startswith("own cost: ")]
    if not rows:
        return [[why_it_failed(stderr)]]
    return [[*row, *own] if row[0] == "off" else row for row in rows]


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default="gpu,launch")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--step-ms", default="20,50,250,1000")
    parser.add_argument("--modes", default="watched,idle", help="toggled.py's")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--block-s", type=float, default=2.5, help="of a mode in a round")
    parser.add_argument("--learn-s", type=float, default=20.0, help="before the first block")
    parser.add_argument("--jobs", type=int, default=1, help="at once")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all")
    options = parser.parse_args()
    give_up_s = time.monotonic() + 60 * options.minutes
    cpus: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for some in shares_of_cpus(options.jobs):
        cpus.put(some)

    def run_on_own_cpus(case: Case) -> None:
        some = cpus.get()
        os.sched_setaffinity(0, some)  # of this thread, and so of its children
        rows = run(case, give_up_s - time.monotonic())
        cpus.put(some)
        for row in rows:
            print_row(f"{case.kind}-bound", str(case.ranks), f"{case.step_ms:g} ms", *row)

    print_head(
        "job", "ranks", "asked", "mode", "step, median", "ratio", "95 % interval", "range", "CPU",
        "measured", "gap, median", "longest", "own cost",
    )  # fmt: skip
    cases = []
    for kind, ranks, step_ms in itertools.product(
        options.kinds.split(","), map(int, options.ranks.split(",")), map(float, options.step_ms.split(","))
    ):
        block = max(LEAST_BLOCK, round(options.block_s * 1e3 / step_ms))
        learn = max(LEAST_LEARN, math.ceil(options.learn_s * 1e3 / step_ms))
        modes = tuple(options.modes.split(","))
        cases.append(Case(kind, ranks, step_ms, options.rounds, block, learn, modes))
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_on_own_cpus, cases))


if __name__ == "__main__":
    main()
