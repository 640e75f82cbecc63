"""Two products with their collectives, by all available overlap methods: prints a table.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/gemm_overlap.py 8192 32768 8192

The products are those of a tensor-parallel MLP. Tokens (M, K) are gathered and multiplied by a rank's
columns of a weight (K, N). The result is multiplied by its rows of another weight (N, K), summed over the
ranks and scattered. ``torch`` does one after another; the other methods are in collective_matmul.py.

With ``--method all`` each method in turn runs ``--iters`` steps. After each round the job prints for each:
rank 0's median time, TFLOP/s, the hidden part of the collective's own time, and the speed-up over
``torch``. A method that cannot run here has a row with the reason.

On the screen, ``ring`` has sends and receives below the products, ``symmetric-memory`` peer-to-peer copies,
and ``transformer-engine`` userbuffers kernels.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.workloads import collective_matmul, job
from overlaptop.workloads.catalog import GEMM_OVERLAP, METHODS, is_installed, why_no_method
from overlaptop.workloads.collective_matmul import Collectives, Group, Ring, SymmetricMemory, Way

WARM_UP = 2  # Uncounted steps at the beginning of each method's turn
PRODUCTS = ("all-gather + product", "product + reduce-scatter")


@dataclass
class Work:
    """The operands of both products."""

    rows: Tensor  # (M / ranks, K)
    up: Tensor  # (K, N / ranks)
    hidden: Tensor  # (M, N / ranks)
    down: Tensor  # (N / ranks, K)

    @property
    def tflop(self) -> float:
        """TFLOP of either product, on one rank."""
        return 2e-12 * len(self.hidden) * self.up.numel()


Moment: TypeAlias = torch.cuda.Event | float


def add_moment(moments: list[Moment], device: torch.device) -> None:
    """Add this moment on the device's timeline."""
    moments.append(torch.cuda.Event(enable_timing=True) if device.type == "cuda" else time.perf_counter())
    if isinstance(moments[-1], torch.cuda.Event):
        moments[-1].record()


def lengths_s(moments: Sequence[Any]) -> list[float]:
    """Return the seconds between successive moments; waits for the last one."""
    if isinstance(moments[-1], float):
        return [later - earlier for earlier, later in pairwise(moments)]
    moments[-1].synchronize()
    return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(moments)]


Method: TypeAlias = Callable[[Callable[[], None]], tuple[Tensor, Tensor]]
"""Runs both products. It marks the moment between them, ``torch`` also those beside its collectives."""


def separately(work: Work, group: Group) -> Method:
    """Make ``torch``: collective, product; product, collective."""
    way = Collectives(group, asynchronous=False)

    def both(mark: Callable[[], None]) -> tuple[Tensor, Tensor]:
        started = way.start_gather(work.rows)
        mark()
        _, product = way.gather_multiply(started, work.up)
        mark()
        summed = work.hidden @ work.down
        mark()
        own = torch.empty_like(work.rows)
        job.reduce_scatter(own, summed, group=group)
        return product, own

    return both


def by(way: Way, work: Work) -> Method:

    def both(mark: Callable[[], None]) -> tuple[Tensor, Tensor]:
        _, product = way.gather_multiply(way.start_gather(work.rows), work.up)
        mark()
        own, _ = way.multiply_scatter(work.hidden, work.down)
        return product, own

    return both


def by_transformer_engine(work: Work, group: Group) -> Method:
    """Make a method of two of its linear layers, with user buffers."""
    te: Any = collective_matmul.torch_layers()
    collective_matmul.allocate_buffers(te, work.rows, len(work.hidden), group)

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

    def both(mark: Callable[[], None]) -> tuple[Tensor, Tensor]:
        product = up(work.rows)
        mark()
        return product, down(work.hidden)

    return both


def method_called(name: str, work: Work, group: Group) -> Method:
    if name == "torch":
        return separately(work, group)
    if name == "transformer-engine":
        return by_transformer_engine(work, group)
    return by(Ring(group) if name == "ring" else SymmetricMemory(group), work)


Times: TypeAlias = list[list[float]]  # Seconds between the moments of each step of one method


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
    wanted = METHODS if options.method == "all" else (options.method,)
    why_not = {name: why_no_method(name, place.world_size, place.defaults) for name in wanted}
    faults = {name: why for name, why in why_not.items() if why}
    can_run = {name: method_called(name, work, group) for name in wanted if name not in faults}
    times: dict[str, Times] = {}
    turn = WARM_UP + options.iters
    report = job.Report(options, place, "figure")
    for step in report.steps():
        number, at = divmod(step, turn)
        name = list(can_run)[number % len(can_run)]
        moments: list[Moment] = []
        mark = partial(add_moment, moments, place.device)
        mark()
        with torch.no_grad():
            product, own = can_run[name](mark)
        mark()
        report.add(product.float().abs().mean() + own.float().abs().mean())
        if at < WARM_UP:
            times[name] = []
            continue
        times[name].append(lengths_s(moments))
        if place.rank == 0 and at == turn - 1 and name == list(can_run)[-1]:
            print(table({**times, **faults}, work.tflop), flush=True)
    if "transformer-engine" in can_run:
        te: Any = collective_matmul.torch_layers()
        te.module.base.destroy_ub()


if __name__ == "__main__":
    asked_for = GEMM_OVERLAP.parser().parse_args().method
    if asked_for in (None, "all", "transformer-engine") and is_installed("transformer_engine"):
        os.environ.update(collective_matmul.USER_BUFFERS_ENVIRONMENT)
    job.main(__file__, run)
