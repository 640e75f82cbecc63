"""Runs a bundled workload, or any script, with one fault on purpose: one rank is late.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/faults.py --by gc --workload "ddp --layers 2"

The first steps are unchanged and give the length of a step. From then on the late rank loses a share of
that length in each step. The workload does not know: hooks of torch show where its steps end.

On the screen, the first line names the late rank and how long the others wait for it. With ``sleep`` its
lanes are empty in forward, with ``compute`` its compute is longer, with ``gc`` and ``loader`` it stops in
forward or before it, with ``cpus`` all its CPU work takes longer. With ``batches`` the late rank changes
from step to step, and nobody is to blame. On a CPU the lanes show phases and not their gaps.
"""

import contextlib
import gc
import math
import os
import random
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset

import overlaptop.agent
from overlaptop.workloads.catalog import FAULTS, what_runs
from overlaptop.workloads.options import OptionsError, complete

PRODUCT = 4096  # Rows and columns of the matrices of ``compute`` on a GPU; a sixteenth on a CPU
COLLECTION_NS = 50_000_000  # Longest single garbage collection; several make up a longer loss
NICE_STEP = 1.25  # CPU share ratio of one step of niceness: sched_prio_to_weight in kernel/sched/core.c
MAX_NICE = 19
SPIN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # it ends with the rank
os.nice(int(sys.argv[1]))
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000):
        pass
"""


class Cause:
    """Why a rank is late. This one sleeps, and so issues everything late."""

    in_forward = True  # Whether time is lost in the middle of forward; otherwise before it
    on_cpu = True  # Whether the training thread itself loses the time

    def prepare(self, lose_ns: int) -> None:
        """Prepare to lose about this much at a time; called once."""

    def lose(self, lose_ns: int) -> None:
        time.sleep(lose_ns / 1e9)


class Compute(Cause):
    """Matrix products in addition to the workload's."""

    on_cpu = False

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        n, dtype = (PRODUCT, torch.bfloat16) if self._on_gpu else (PRODUCT // 16, torch.float32)
        self._matrix = torch.ones(n, n, device=device, dtype=dtype)
        self._product_ns = 0.0

    def prepare(self, lose_ns: int) -> None:
        del lose_ns
        for _ in range(2 if self._on_gpu else 0):  # the first round is slower
            torch.cuda.synchronize()
            began_ns = time.perf_counter_ns()
            for _ in range(10):
                self._matrix @ self._matrix
            torch.cuda.synchronize()
            self._product_ns = (time.perf_counter_ns() - began_ns) / 10

    def lose(self, lose_ns: int) -> None:
        if self._on_gpu:
            for _ in range(max(1, round(lose_ns / self._product_ns))):
                self._matrix @ self._matrix
            return
        until_ns = time.perf_counter_ns() + lose_ns
        while time.perf_counter_ns() < until_ns:
            self._matrix @ self._matrix


class Collect(Cause):
    """Python's garbage collector, in an interpreter that holds many objects."""

    def prepare(self, lose_ns: int) -> None:
        self._times = math.ceil(lose_ns / COLLECTION_NS)
        gc.freeze()  # exclude existing objects, which would add their own time
        count = 10_000
        for _ in range(3):
            self._objects: list[list[object]] = [[] for _ in range(count)]
            gc.collect()
            began_ns = time.perf_counter_ns()
            gc.collect()
            count = max(1, round(count * lose_ns / self._times / (time.perf_counter_ns() - began_ns)))

    def lose(self, lose_ns: int) -> None:
        del lose_ns
        for _ in range(self._times):
            gc.collect()


class SlowData(IterableDataset[int]):
    """Takes this long for each batch."""

    lose_ns = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            time.sleep(self.lose_ns / 1e9)
            yield 0


class Load(Cause):
    """A DataLoader that makes the training thread wait for each batch."""

    in_forward = False

    def prepare(self, lose_ns: int) -> None:
        del lose_ns
        self._data = SlowData()
        self._batches = iter(DataLoader(self._data, batch_size=None))

    def lose(self, lose_ns: int) -> None:
        self._data.lose_ns = lose_ns
        next(self._batches)


class Cpus(Cause):
    """All threads of the rank on one CPU, which another process also uses."""

    in_forward = on_cpu = False

    def __init__(self, share: float) -> None:
        # A competitor of weight w takes w / (1 + w) of the CPU, so our work takes 1 + w times as long.
        self._nice = min(MAX_NICE, max(0, round(-math.log(share, NICE_STEP))))

    def prepare(self, lose_ns: int) -> None:
        del lose_ns
        cpu = max(os.sched_getaffinity(0))
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), {cpu})
        # Not in another session: the kernel shares CPUs between sessions first.
        self._competitor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SPIN, str(self._nice), str(os.getpid())]
        )

    def lose(self, lose_ns: int) -> None:
        del lose_ns


class Injector:
    """Finds the steps of the workload, and makes it lose time from some step on."""

    def __init__(
        self, cause: Cause | None, share: float, untouched: int, *, uneven: bool, device: torch.device
    ) -> None:
        """``cause`` None: this rank has no fault. ``uneven``: the share differs in each step."""
        self._cause = cause
        self._share = share
        self._untouched = untouched
        self._uneven = uneven
        self._rank = int(os.environ.get("RANK", "0"))
        self._on_gpu = device.type == "cuda"
        # A CPU that runs ahead of its GPU would lose time without effect. A CPU that reads its loss in each
        # step does not run ahead.
        self._drains = self._on_gpu and cause is not None and cause.on_cpu
        self._step = -1  # As the agent counts: from 0 at the first boundary
        self._ended_ns: list[int] = []  # Ends of the untouched steps
        self._lose_ns = 0  # Loss in each step; 0: steps are still untouched
        self._owed = False  # Whether this step's loss is still to come
        self._has_modules = self._marks_steps = False
        self._depth = 0  # Of modules' forward passes in each other
        self._optimizer: object = None

    def install(self) -> None:
        register_optimizer_step_post_hook(self._stepped)
        register_module_forward_pre_hook(self._forward_begins)
        register_module_forward_hook(self._forwarded)
        mark = overlaptop.agent.step

        def marked() -> None:
            mark()
            if not self._marks_steps:
                self._ended_ns.clear()  # a step that an optimizer began is not complete
            self._marks_steps = True
            self._boundary()

        overlaptop.agent.step = marked

    def _stepped(self, optimizer: object, _args: object, _kwargs: object) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is self._optimizer and not self._marks_steps:
            self._boundary()

    def _forward_begins(self, _module: object, _inputs: object) -> None:
        self._has_modules = True
        self._depth += 1

    def _forwarded(self, _module: object, _inputs: object, _output: object) -> None:
        self._depth -= 1
        if self._owed:
            self._lose()

    def _boundary(self) -> None:
        self._step += 1
        if self._cause is not None:
            if not self._lose_ns:
                self._ended_ns.append(time.perf_counter_ns())
                if self._step >= self._untouched and len(self._ended_ns) > 1:
                    self._calibrate()
            self._owed = True
            if not (self._cause.in_forward and self._has_modules):
                self._lose()

    def _calibrate(self) -> None:
        assert self._cause is not None
        ends = self._ended_ns[len(self._ended_ns) // 3 :]  # the first steps are longer
        step_ns = median(after - before for before, after in pairwise(ends))
        self._lose_ns = max(1, round(self._share * step_ns))
        self._cause.prepare(self._lose_ns)
        print(
            f"rank {self._rank}: from step {self._step} on it loses {self._lose_ns / 1e6:.1f} ms in each, "
            f"of {step_ns / 1e6:.1f} ms",
            flush=True,
        )

    def _lose(self) -> None:
        assert self._cause is not None
        self._owed = False
        if self._drains:
            torch.cuda.synchronize()
        if not self._lose_ns:
            return
        lose_ns = self._lose_ns
        if self._uneven:
            draw = random.Random(f"{self._rank} {self._step}").random()  # noqa: S311
            lose_ns = round(2 * lose_ns * draw)
        self._lose_now(lose_ns)

    def _lose_now(self, lose_ns: int) -> None:
        assert self._cause is not None
        self._cause.lose(lose_ns)


def main(injector: Callable[..., Injector] = Injector) -> None:
    """Run what this process's command line says; ``injector``: of what kind."""
    parser = FAULTS.parser()
    options = parser.parse_args()
    complete(FAULTS.options, options, "cpu")
    try:
        run = what_runs(options)
        on_gpu = run.device == "cuda" or (run.device == "auto" and torch.cuda.is_available())
        FAULTS.fits(options, int(os.environ.get("WORLD_SIZE", "1")), "cuda" if on_gpu else "cpu")
    except OptionsError as fault:
        parser.error(str(fault))
    device = torch.device("cuda" if on_gpu else "cpu")
    uneven = options.by == "batches"
    causes: dict[str, Callable[[], Cause]] = {
        "sleep": Cause, "compute": lambda: Compute(device), "batches": lambda: Compute(device),
        "gc": Collect, "loader": Load, "cpus": lambda: Cpus(options.share),
    }  # fmt: skip
    late = uneven or int(os.environ.get("RANK", "0")) == options.late_rank
    cause = causes[options.by]() if late else None
    injector(cause, options.share, options.untouched, uneven=uneven, device=device).install()
    sys.argv = [run.path, *run.words]
    sys.path[0] = str(Path(run.path).absolute().parent)
    runpy.run_path(run.path, run_name="__main__")


if __name__ == "__main__":
    main()
