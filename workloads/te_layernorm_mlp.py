"""TransformerEngine's LayerNormMLP, split over the ranks; its products overlap with their transfers.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/te_layernorm_mlp.py

A layer norm and two products, as in tensor_parallel.py, but in one module of NVIDIA's, with transfers
through user buffers beside the products. ``--no-overlap`` leaves the collectives to NCCL. With
``--replicas`` the ranks form that many groups, and DDP averages their gradients.

The job itself sets two environment variables (collective_matmul.py says why):
CUDA_DEVICE_MAX_CONNECTIONS=1 and UB_SKIPMC=1, which leaves NVLink multicast off.

On the screen, userbuffers kernels lie below the products; with ``--no-overlap``, NCCL's kernels between
them. The events source shows phases only: with one connection its events would destroy the overlap.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaptop.workloads import collective_matmul, job
from overlaptop.workloads.collective_matmul import Group
from overlaptop.workloads.tensor_parallel import groups

LEARNING_RATE = 1e-4


def build(
    te: Any, group: Group, layers: int, width: int, dtype: torch.dtype, *, overlap: bool
) -> nn.Sequential:
    """Return `layers` layers split over a group; with overlap they need its user buffers."""
    return nn.Sequential(*(
        te.LayerNormMLP(
            width, 4 * width, bias=False, set_parallel_mode=True, sequence_parallel=True,
            tp_group=group, tp_size=group.size(), params_dtype=dtype, device="cuda",
            ub_overlap_ag=overlap, ub_overlap_rs=overlap, ub_bulk_dgrad=overlap, ub_bulk_wgrad=overlap,
        )
        for _ in range(layers)
    ))  # fmt: skip


def run(options: argparse.Namespace, place: job.Place) -> None:
    te: Any = collective_matmul.torch_layers()
    group, alike = groups(place, options.replicas)
    torch.manual_seed(options.seed + place.rank)
    dtype = job.DTYPES[options.dtype]
    tokens = torch.randn(
        (options.tokens // group.size(), 1, options.width), dtype=dtype, device=place.device,
        requires_grad=True,  # otherwise the first layer would overlap differently
    )  # fmt: skip
    if options.overlap:
        collective_matmul.allocate_buffers(te, tokens, options.tokens, group)
    model: nn.Module = build(te, group, options.layers, options.width, dtype, overlap=options.overlap)
    if alike is not None:
        model = DistributedDataParallel(model, process_group=alike)
    norms = [each for each in model.parameters() if getattr(each, "sequence_parallel", False)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    report = job.Report(options, place)
    for _ in report.steps():
        loss = model(tokens).float().square().mean()
        loss.backward()
        for norm in norms:  # each rank has its own tokens' part of their gradients
            dist.all_reduce(norm.grad, group=group)
        optimizer.step()
        optimizer.zero_grad()
        tokens.grad = None
        report.add(loss)
    if options.overlap:
        te.module.base.destroy_ub()


if __name__ == "__main__":
    os.environ.update(collective_matmul.USER_BUFFERS_ENVIRONMENT)
    job.main(__file__, run)
