"""Training with the model itself split over the ranks."""

import argparse

from overlaptop.workloads.entries.workload import (
    REPLICAS,
    bundled,
    common,
    ranks_a_replica,
    require_multiple,
    why_no_gpu_each,
)
from overlaptop.workloads.options import Defaults, Option, OptionsError, non_negative_float, positive_int

STAGES_A_RANK = {"interleaved": 2, "zero-bubble": 2}
"""Stages on each rank by mode of the pipeline; 1 in all other modes."""


def _tensor_parallel_fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    split = ranks_a_replica(options, ranks)
    if options.mode == "symmetric-memory" and (fault := why_no_gpu_each(ranks, where)):
        raise OptionsError(f"--mode symmetric-memory: {fault}")
    if options.mode in ("ring", "symmetric-memory") and not options.sequence_parallel:
        raise OptionsError(
            f"--mode {options.mode} needs sequence parallelism: there is nothing to gather without"
        )
    flag, tokens = ("--requests", options.requests) if options.decode else ("--tokens", options.tokens)
    parts = (split if options.sequence_parallel else 1) * (2 if options.mode == "async" else 1)
    require_multiple(flag, tokens, parts)
    if 4 * options.width % split:
        raise OptionsError(f"--width: 4 times it must be a multiple of {split}")


def _pipeline_fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    del where
    if ranks < 2:
        raise OptionsError("a pipeline needs two ranks")
    require_multiple("--layers", options.layers, ranks * STAGES_A_RANK.get(options.mode, 1), "stages")
    require_multiple("--batch", options.batch, options.microbatches, "micro-batches")
    if options.mode == "1f1b" and options.microbatches < ranks:
        raise OptionsError(f"--microbatches: must be {ranks} or more, one for each stage")
    if options.mode in STAGES_A_RANK:
        require_multiple("--microbatches", options.microbatches, ranks, "ranks")


TENSOR_PARALLEL = bundled(
    "tensor_parallel",
    "layers split over the ranks, Megatron's way: collectives around each product, or inside it",
    Option(
        "--mode", "how products and collectives overlap",
        choices=("sync", "async", "ring", "symmetric-memory"), default="async",
    ),
    Option("--sequence-parallel", "split tokens over the ranks between the products", default=True),
    Option("--decode", "forward only, a token of each request a step", default=False),
    REPLICAS,
    # 1.1 billion parameters. On two H200s 26 Tflop and 4 GB a step: with fewer tokens the CPU is hardly
    # ahead of the GPU in forward. On two laptop cores 0.1 s.
    Option("--layers", "two products each", positive_int, "N", on_gpu=8, on_shared=4, on_cpu=4),
    Option("--width", "of a token", positive_int, "N", on_gpu=4096, on_shared=1024, on_cpu=256),
    Option("--tokens", "a step, of a replica", positive_int, "N", on_gpu=16384, on_shared=2048, on_cpu=512),
    Option("--requests", "with --decode: tokens a step", positive_int, "N", default=32),
    *common("--losses"),
    fits=_tensor_parallel_fits,
)  # fmt: skip
PIPELINE = bundled(
    "pipeline",
    "layers behind one another on the ranks: micro-batches go through, and the bubble is printed",
    Option(
        "--mode", "the schedule",
        choices=("gpipe", "1f1b", "interleaved", "zero-bubble", "hand-written", "blocking"), default="1f1b",
    ),
    Option("--microbatches", "parts of a batch", positive_int, "N", default=8),
    # 1.1 billion parameters on a GPU, in few large layers: zero-bubble takes twice the CPU's time for a
    # backward pass. On two laptop cores a step of 0.2 s.
    Option("--layers", "of the whole model", positive_int, "N", on_gpu=16, on_cpu=16),
    Option("--width", "of each", positive_int, "N", on_gpu=8192, on_shared=1024, on_cpu=256),
    Option("--batch", "rows a step", positive_int, "N", on_gpu=32768, on_shared=8192, on_cpu=1024),
    *common("--losses"),
    fits=_pipeline_fits,
)  # fmt: skip
EXPERT_PARALLEL = bundled(
    "expert_parallel",
    "a mixture of experts: tokens to their expert's rank and back, beside the shared expert or not",
    Option(
        "--mode", "whether the shared expert runs beside the transfers", choices=("sync", "overlapped"),
        default="overlapped",
    ),
    Option("--skew", "of the router: 0 draws all experts alike", non_negative_float, "S", default=0.0),
    # 0.4 billion parameters on a GPU and 0.5 GB a step each way; on two laptop cores a step of 0.1 s.
    Option("--layers", "with an expert a rank each", positive_int, "N", on_gpu=8, on_shared=4, on_cpu=4),
    Option("--width", "of a token", positive_int, "N", on_gpu=4096, on_shared=1024, on_cpu=256),
    Option("--tokens", "a rank and step", positive_int, "N", on_gpu=8192, on_shared=1024, on_cpu=512),
    *common("--losses"),
)  # fmt: skip
