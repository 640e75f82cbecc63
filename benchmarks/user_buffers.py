"""What TransformerEngine's user buffers gain, by how many SMs their transfers take.

    torchrun --nproc-per-node=2 benchmarks/user_buffers.py [--sms 16,4,32]

The layers and steps of workloads/te_layernorm_mlp.py, without the agent, one way after the other in one
process. Of rank 0: the median step by CUDA events; by torch.profiler, for how long of a step at least one
matrix product ran, and in how many kernels.
"""

from __future__ import annotations

import argparse
import os
import re
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from tables import number, print_head, print_row

from overlaptop.timeline.spans import from_pairs, length_ns
from overlaptop.workloads import job, te_layernorm_mlp, user_buffers

LAYERS, WIDTH, TOKENS = 8, 4096, 8192
"""As the workload has them on GPUs."""
STEPS, WARM_UP, PROFILED = 20, 5, 5
PRODUCT = re.compile("gemm|nvjet|cutlass|xmma|splitk", re.IGNORECASE)
"""A kernel's name."""


class Steps:
    """A model, with user buffers whose transfers take so many SMs, or without (None)."""

    def __init__(self, te: Any, sms: int | None) -> None:
        group = dist.group.WORLD
        assert group is not None
        torch.manual_seed(dist.get_rank())
        self._te, self._has_buffers = te, sms is not None
        self._tokens = torch.randn(
            (TOKENS // group.size(), 1, WIDTH), dtype=torch.bfloat16, device="cuda", requires_grad=True
        )
        if sms is not None:
            user_buffers.allocate(te, self._tokens, TOKENS, group, sms=sms)
        self._model = te_layernorm_mlp.build(
            te, group, LAYERS, WIDTH, torch.bfloat16, overlap=self._has_buffers
        )
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=te_layernorm_mlp.LEARNING_RATE, fused=True
        )

    def step(self) -> None:
        """Make one."""
        self._model(self._tokens).float().square().mean().backward()
        for each in self._model.parameters():
            if getattr(each, "sequence_parallel", False):  # each rank has its own tokens' part
                dist.all_reduce(each.grad)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._tokens.grad = None

    def times_ms(self) -> list[float]:
        """Of each step."""
        for _ in range(WARM_UP):
            self.step()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        marks[0].record()
        for at in range(1, STEPS + 1):
            self.step()
            marks[at].record()
            marks[max(0, at - job.MOST_STEPS_AHEAD)].synchronize()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in pairwise(marks)]

    def products(self) -> tuple[float, float]:
        """For how many ms of a step at least one ran, and in how many kernels."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                self.step()
            torch.cuda.synchronize()
        results: Any = profiler.profiler
        found = [each for each in results.kineto_results.events() if PRODUCT.search(each.name())]
        spans = from_pairs([(each.start_ns(), each.start_ns() + each.duration_ns()) for each in found])
        return length_ns(spans) / PROFILED / 1e6, len(found) / PROFILED

    def close(self) -> None:
        """Free the buffers: there can be one set at a time."""
        torch.cuda.synchronize()
        if self._has_buffers:
            user_buffers.free(self._te)


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sms", default="16,4,32", help="default: %(default)s")
    options = parser.parse_args()
    user_buffers.prepare_environment()
    te = user_buffers.torch_layers()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    if dist.get_rank() == 0:
        print_head("transfers", "step, median", "range", "against no overlap", "products", "kernels")
    plain_ms: float | None = None
    for sms in [None, *map(int, options.sms.split(","))]:
        steps = Steps(te, sms)
        found_ms = steps.times_ms()
        step_ms = median(found_ms)
        products_ms, kernels = steps.products()
        steps.close()
        ratio = step_ms / plain_ms if plain_ms is not None else None
        plain_ms = plain_ms or step_ms
        if dist.get_rank() == 0:
            print_row(
                "by NCCL" if sms is None else f"user buffers, {sms} SMs", number(step_ms, 1, " ms"),
                f"{min(found_ms):.1f} .. {max(found_ms):.1f}", number(ratio, 2, "×"),
                number(products_ms, 1, " ms"), number(kernels, 0),
            )  # fmt: skip
        del steps
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
