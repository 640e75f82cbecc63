"""The common part of the bundled jobs: options, devices, the process group, step counts and output."""

import argparse
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

# DDP imports this module. Its default arguments then hold the default process group for good, so gloo's
# threads outlive destroy_process_group(), and a thread that needs the GIL during the interpreter's shutdown
# aborts the process. Imported before a group exists, the module holds none.
import torch.distributed.nn

import overlaptop.agent
from overlaptop.workloads import catalog, shared_gpu
from overlaptop.workloads.options import Defaults, OptionsError, Workload, complete

MIB = 1 << 20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

MOST_STEPS_AHEAD = 4
"""Steps that the CPU may be ahead of the GPU; otherwise it would be ahead by a thousand launches."""
REPORT_EVERY_S = 2.0

# torch's names since 2.13, and before.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def wait(*works: dist.Work | None) -> None:
    for work in works:
        if work is not None:  # None: the collective was not asynchronous
            work.wait()


@dataclass(frozen=True, slots=True)
class Place:
    """The process's rank and device."""

    rank: int
    world_size: int
    device: torch.device
    shares_gpu: bool = False  # Whether this host has more ranks than GPUs

    @property
    def defaults(self) -> Defaults:
        """The kind of device, which selects the options' defaults."""
        if self.device.type == "cpu":
            return "cpu"
        return "shared" if self.shares_gpu else "cuda"


def parse(workload: Workload, argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, Place]:
    """Return the options and this process's place in the job, by torchrun's environment, or a single rank
    without one; exits on a usage error. With fewer GPUs than ranks, ranks share the GPUs round-robin.
    """
    parser = workload.parser()
    parsed = parser.parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if parsed.device == "cpu" or (parsed.device != "cuda" and not torch.cuda.is_available()):
        place = Place(rank, world_size, torch.device("cpu"))
    else:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
        gpus = torch.cuda.device_count()
        if gpus == 0:
            parser.error("--device cuda: there is no GPU here")
        if gpus < ranks_here < world_size:
            parser.error(
                f"{ranks_here} ranks and {gpus} GPU{'s' * (gpus > 1)} here: ranks of several hosts cannot "
                "share GPUs; start fewer processes, or pass --device cpu"
            )
        place = Place(rank, world_size, torch.device("cuda", local_rank % gpus), gpus < ranks_here)
    complete(workload.options, parsed, place.defaults)
    return parsed, place


@contextmanager
def process_group(place: Place) -> Iterator[None]:
    """Provide the default process group: NCCL on GPUs, gloo on CPUs."""
    on_gpu = place.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(place.device)
    if place.shares_gpu:
        shared_gpu.prepare_nccl(place.rank)
        if place.rank == 0:
            print(shared_gpu.describe(place.world_size, torch.cuda.device_count()), flush=True)
    backend, device_id = ("nccl", place.device) if on_gpu else ("gloo", None)
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=device_id)
    else:
        alone = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch forgot to say so
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, device_id=device_id)
    yield
    # Not in a `finally`: after an error other ranks may be inside a collective, and destroying the group
    # would wait for them instead of ending with the traceback.
    if on_gpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()


def main(script: str, run: Callable[[argparse.Namespace, Place], None]) -> None:
    """Run the job of this process's command line, a bundled workload's. ``run`` raises OptionsError, on all
    ranks alike, if it cannot do what the options ask for.
    """
    workload = catalog.find(script)
    assert workload is not None, script
    options, place = parse(workload)
    try:
        workload.fits(options, place.world_size, place.defaults)
        with process_group(place):
            run(options, place)
    except OptionsError as fault:
        workload.parser().error(str(fault))


def apply(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    """Return ``function.apply(*arguments)`` with its type, which torch does not declare."""
    result: torch.Tensor = function.apply(*arguments)
    return result


def step_numbers(
    options: argparse.Namespace, place: Place, batches: Callable[[], int] = lambda: 1
) -> Iterator[int]:
    """Yield 0, 1, 2, ... up to the options' limits, each after the wait for its data.

    All ranks get the same number of steps. Comparing clocks costs a collective, so it happens rarely: rank
    0 plans half of the batches that seem to be left, then looks again. ``batches()`` returns the number of
    the next step, the same on all ranks. The CPU waits if it is more than a few steps ahead of the GPU, as
    in loops that read their loss.
    """
    began_s = time.monotonic()
    done, look_again_at = 0, 1
    limit_s: float | None = options.seconds
    begun: deque[torch.cuda.Event] = deque()
    for step in range(options.steps) if options.steps else itertools.count():
        if place.device.type == "cuda":
            begun.append(torch.cuda.Event(blocking=True))
            begun[-1].record()
            if len(begun) > MOST_STEPS_AHEAD:
                begun.popleft().synchronize()
        if limit_s is not None and done >= look_again_at:
            elapsed_s = time.monotonic() - began_s
            seem_left = int((limit_s - elapsed_s) / elapsed_s * done)
            plan = torch.tensor(0 if elapsed_s >= limit_s else max(1, seem_left // 2), device=place.device)
            dist.broadcast(plan, src=0)
            planned = int(plan.item())
            if planned == 0:
                return
            look_again_at = done + planned
        done += batches()
        time.sleep(options.data_ms / 1e3)
        yield step


class Report:
    """Prints rank 0's line every few seconds, and writes each step's figure with all digits to the
    ``results`` file, if there is one. If it ``marks``, it also marks each step's end for the agent: no
    single optimizer shows it.

    Figures stay on the device until a line is due, so that printing does not synchronise each step.
    """

    def __init__(
        self, options: argparse.Namespace, place: Place, figure: str = "loss", *, marks: bool = True
    ) -> None:
        self._options, self._place = options, place
        self._prints, self._marks = place.rank == 0, marks
        self._figure = figure
        path: Path | None = options.results
        self._file = path.open("w", encoding="utf-8") if path and self._prints else None
        self._waiting: list[torch.Tensor] = []
        self._steps = 0
        self._since_s = time.monotonic()

    def steps(self, batches: Callable[[], int] = lambda: 1) -> Iterator[int]:
        """Yield as `step_numbers` does. After the last step, report the remaining figures."""
        yield from step_numbers(self._options, self._place, batches)
        if self._waiting:
            self._print()
        if self._file:
            self._file.close()

    def add(self, figure: torch.Tensor) -> None:
        if self._prints:
            self._waiting.append(figure.detach())
            if time.monotonic() - self._since_s >= REPORT_EVERY_S:
                self._print()
        if self._marks:
            overlaptop.agent.step()

    def _print(self) -> None:
        figures = torch.stack(self._waiting).double().tolist()
        now_s = time.monotonic()
        step_ms = (now_s - self._since_s) / len(figures) * 1e3
        self._steps += len(figures)
        print(f"step {self._steps:6}  {self._figure} {figures[-1]!r}  {step_ms:.1f} ms a step", flush=True)
        if self._file:
            self._file.writelines(f"{figure!r}\n" for figure in figures)
            self._file.flush()
        self._waiting.clear()
        self._since_s = now_s
