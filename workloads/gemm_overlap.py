"""Two products with their collectives, by all available overlap methods: prints a table.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/gemm_overlap.py 8192 32768 8192

The products are those of a tensor-parallel MLP. Tokens (M, K) are gathered and multiplied by a rank's
columns of a weight (K, N). The result is multiplied by its rows of another weight (N, K), summed over the
ranks and scattered. ``torch`` does one after another; the other methods are in collective_matmul.py and
user_buffers.py.

With ``--method all`` each method in turn runs ``--iters`` steps. After each round the job prints for each:
rank 0's median time, TFLOP/s, the hidden part of the collective's own time, and the speed-up over
``torch``. A method that cannot run here has a row with the reason.

On the screen, ``ring`` has sends and receives below the products, ``symmetric-memory`` peer-to-peer copies,
and ``transformer-engine`` userbuffers kernels.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.agent import step as mark_step
from overlaptop.workloads import job, user_buffers
from overlaptop.workloads.collective_matmul import Collectives, Group, Ring, SymmetricMemory, Way
from overlaptop.workloads.entries.overlapped_products import GEMM_OVERLAP, why_no_method
from overlaptop.workloads.entries.workload import is_installed

WARM_UP = 2
"""Uncounted steps at the beginning of each method's turn."""
PRODUCTS = ("all-gather + product", "product + reduce-scatter")


@dataclass
class Work:
    """The operands of both products."""

    rows: Tensor
    """(M / ranks, K)"""
    up: Tensor
    """(K, N / ranks)"""
    hidden: Tensor
    """(M, N / ranks)"""
    down: Tensor
    """(N / ranks, K)"""

    @property
    def tflop(self) -> float:
        """TFLOP of either product, on one rank."""
        return 2e-12 * len(self.hidden) * self.up.numel()


class Clock:
    """Moments of one step on the device's timeline."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._moments: list[Any] = []

    def mark(self) -> None:
        if self._on_gpu:
            moment = torch.cuda.Event(enable_timing=True)
            moment.record()
            self._moments.append(moment)
        else:
            self._moments.append(time.perf_counter())

    def lengths_s(self) -> list[float]:
        """Return the seconds between successive moments; waits for the last one."""
        if not self._on_gpu:
            return [later - earlier for earlier, later in pairwise(self._moments)]
        self._moments[-1].synchronize()
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(self._moments)]


Method: TypeAlias = Callable[[Clock], tuple[Tensor, Tensor]]
"""Runs both products. It marks the moment between them, and ``torch`` also those between product and
collective."""


def separately(work: Work, group: Group) -> Method:
    """Make ``torch``: collective, product; product, collective."""
    way = Collectives(group, asynchronous=False)

    def both(clock: Clock) -> tuple[Tensor, Tensor]:
        started = way.start_gather(work.rows)
        clock.mark()
        _, product = way.gather_multiply(started, work.up)
        clock.mark()
        summed = work.hidden @ work.down
        clock.mark()
        own = torch.empty_like(work.rows)
        job.reduce_scatter(own, summed, group=group)
        return product, own

    return both


def by(way: Way, work: Work) -> Method:
    """Make a method that marks no moment between product and collective."""

    def both(clock: Clock) -> tuple[Tensor, Tensor]:
        _, product = way.gather_multiply(way.start_gather(work.rows), work.up)
        clock.mark()
        own, _ = way.multiply_scatter(work.hidden, work.down)
        return product, own

    return both


def by_transformer_engine(work: Work, group: Group) -> Method:
    """Make a method of two of its linear layers, with user buffers."""
    te: Any = user_buffers.torch_layers()
    user_buffers.allocate(te, work.rows, len(work.hidden), group)

    def linear(weight: Tensor, mode: str, ranks: tuple[int, int], name: str) -> Any:
        into, out = (size * count for size, count in zip(weight.shape, ranks, strict=True))
        layer = te.Linear(
            into, out, bias=False, parallel_mode=mode, sequence_parallel=True, tp_group=group,
            tp_size=group.size(), params_dtype=weight.dtype, device="cuda",
            ub_overlap_ag=True, ub_overlap_rs=mode == "row", ub_name=name,
        )  # fmt: skip
        layer.weight.data.copy_(weight.t())
        return layer

    up = linear(work.up, "column", (1, group.size()), "qkv")
    down = linear(work.down, "row", (group.size(), 1), "proj")

    def both(clock: Clock) -> tuple[Tensor, Tensor]:
        product = up(work.rows)
        clock.mark()
        return product, down(work.hidden)

    return both


Methods: TypeAlias = dict[str, Method | str]


def methods(work: Work, group: Group, options: argparse.Namespace, place: job.Place) -> Methods:
    """Return the requested methods by name; a text says why a method cannot run here."""
    every: dict[str, Callable[[], Method]] = {
        "torch": lambda: separately(work, group),
        "ring": lambda: by(Ring(group), work),
        "symmetric-memory": lambda: by(SymmetricMemory(group), work),
        "transformer-engine": lambda: by_transformer_engine(work, group),
    }
    wanted = every if options.method == "all" else (options.method,)
    return {name: why_no_method(name, place.world_size, place.defaults) or every[name]() for name in wanted}


Times: TypeAlias = list[list[float]]
"""Seconds between the moments of each step of one method."""


def medians_s(times: Times) -> list[float]:
    """Return the median time of both products with their collectives."""
    half = len(times[0]) // 2
    return [median(sum(step[part]) for step in times) for part in (slice(half), slice(half, None))]


def table(times: Mapping[str, Times | str], tflop: float) -> str:
    """Return the table, with a line for each method and product; `tflop`: of either product on one rank."""
    lines = [f"{'':20}{'':26}{'ms':>9}{'TFLOP/s':>10}{'hidden':>9}{'speed-up':>10}"]
    plain = times.get("torch")
    for name, found in times.items():
        if isinstance(found, str):
            lines.append(f"{name:20}not run: {found}")
            continue
        for product, whole_s, at in zip(PRODUCTS, medians_s(found), (0, 1), strict=True):
            hidden = gain = "–"
            if isinstance(plain, list) and plain is not found:
                plain_s = medians_s(plain)[at]
                collective_s = median(step[-at] for step in plain)  # the first length, or the last
                hidden = f"{min(1.0, max(0.0, (plain_s - whole_s) / collective_s)):.0%}"
                gain = f"{plain_s / whole_s:.2f}×"
            lines.append(
                f"{name:20}{product:26}{whole_s * 1e3:9.3f}{tflop / whole_s:10.2f}{hidden:>9}{gain:>10}"
            )
    return "\n".join(lines)


def operands(options: argparse.Namespace, place: job.Place) -> Work:
    """Make random operands: each rank takes its part of tensors that are the same on all ranks."""
    random = torch.Generator(place.device).manual_seed(options.seed)
    dtype, (m, n, k) = job.DTYPES[options.dtype], (options.m, options.n, options.k)

    def part(rows: int, columns: int, dim: int) -> Tensor:
        whole = torch.randn(rows, columns, generator=random, device=place.device) / rows**0.5
        own: Tensor = whole.chunk(place.world_size, dim)[place.rank].to(dtype)
        return own.contiguous()

    return Work(part(m, k, 0), part(k, n, 1), part(m, n, 1), part(n, k, 0))


def run(options: argparse.Namespace, place: job.Place) -> None:
    group = dist.group.WORLD
    assert group is not None
    work = operands(options, place)
    found = methods(work, group, options, place)
    can_run = {name: method for name, method in found.items() if not isinstance(method, str)}
    faults = {name: fault for name, fault in found.items() if isinstance(fault, str)}
    times: dict[str, Times] = {}
    turn = WARM_UP + options.iters
    report = job.Report(options, place, "figure")
    for step in report.steps():
        number, at = divmod(step, turn)
        name = list(can_run)[number % len(can_run)]
        clock = Clock(place.device)
        with torch.no_grad():
            clock.mark()
            product, own = can_run[name](clock)
            clock.mark()
        report.add(product.float().abs().mean() + own.float().abs().mean())
        mark_step()
        if at < WARM_UP:
            times[name] = []
            continue
        times[name].append(clock.lengths_s())
        if place.rank == 0 and at == turn - 1 and name == list(can_run)[-1]:
            print(table({**times, **faults}, work.tflop), flush=True)
    if "transformer-engine" in can_run:
        user_buffers.free(user_buffers.torch_layers())


def main() -> None:
    asked_for = GEMM_OVERLAP.parser().parse_args().method
    if asked_for in (None, "all", "transformer-engine") and is_installed("transformer_engine"):
        user_buffers.prepare_environment()
    job.main(__file__, run)


if __name__ == "__main__":
    main()
