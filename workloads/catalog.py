"""The bundled workloads, to list or start them. Imports none of them, and no torch."""

import argparse
import importlib.util
import shlex
from pathlib import Path
from typing import NamedTuple

from overlaptop.workloads.options import (
    REPLICAS,
    Defaults,
    Option,
    OptionsError,
    bundled,
    command,
    common,
    count,
    gpt,
    non_negative_float,
    positive_float,
    positive_int,
)
from overlaptop.workloads.options import Workload as Workload

# Requirements of modes on the ranks and the machine


def require_multiple(option: str, value: int, unit: int, of: str = "") -> None:
    if value % unit:
        raise OptionsError(f"{option}: must be a multiple of {unit}{of and f', the {of}'}")


def ranks_a_replica(options: argparse.Namespace, ranks: int) -> int:
    """Return the number of ranks that share the weights. Raises OptionsError if groups do not divide."""
    if ranks % options.replicas:
        raise OptionsError(f"--replicas: {ranks} ranks do not make {options.replicas} groups")
    return int(ranks // options.replicas)


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def why_no_gpu_each(ranks: int, where: Defaults) -> str:
    """Why ranks cannot access each other's GPU; empty if they can."""
    return "" if where == "cuda" else f"needs {ranks} GPUs, one for each rank"


def why_no_transformer_engine(ranks: int, where: Defaults, *, overlaps: bool) -> str:
    """Why TransformerEngine, or its overlap, cannot be used here; empty if it can."""
    if not is_installed("transformer_engine"):
        return "TransformerEngine is not installed here (pip install transformer-engine[pytorch])"
    if where == "cpu":
        return f"needs {ranks} GPUs"
    return why_no_gpu_each(ranks, where) if overlaps else ""


# Training with the model whole, or in shards, on each rank

_BUCKETS = Option("--bucket-cap-mb", "bucket size in MiB", positive_float, "MB", on_gpu=25.0, on_cpu=2.0)

DDP = bundled(
    "ddp",
    "a transformer under DDP: gradients in buckets, one by one, or after backward",
    Option(
        "--mode", "when gradients are reduced, and by whom",
        choices=("bucketed", "per-parameter", "bucketed-hooks", "after-backward"), default="bucketed",
    ),
    _BUCKETS,
    Option(
        "--accumulation", "batches whose gradients are summed before they are reduced (no_sync)",
        choices=("1", "2", "4", "8"), default="1",
    ),
    # 840 million parameters, 1.7 GB of gradients: about 50 ms a step on two H200s.
    *gpt(gpu_layers=16, gpu_width=2048),
)  # fmt: skip
ZERO = bundled(
    "zero",
    "a transformer under ZeRO-1/2, written out: sharded gradients and optimizer",
    Option("--mode", "when ranks communicate", choices=("overlapped", "sequential"), default="overlapped"),
    Option(
        "--stage", "1: optimizers are sharded; 2: gradients, too, which are freed when they are reduced",
        choices=("1", "2"), default="2",
    ),
    _BUCKETS,
    *gpt(gpu_layers=16, gpu_width=2048),
)  # fmt: skip
FSDP = bundled(
    "fsdp",
    "a transformer under FSDP2: weights gathered when a block needs them, or ahead",
    Option(
        "--prefetch-forward", "blocks whose weights are gathered ahead in forward; 0: as FSDP2 does by "
        "itself, none ahead", count, "N", default=0,
    ),
    Option(
        "--prefetch-backward", "blocks whose weights are gathered ahead in backward; 0: as FSDP2 does by "
        "itself, one ahead", count, "N", default=0,
    ),
    Option(
        "--reshard-after-forward", "free a block's weights behind its forward and gather them again in "
        "backward", default=True,
    ),
    Option(
        "--limit-gathers", "blocks whose weights may be there at a time; the CPU waits for the GPU before "
        "it asks for more; 1: no overlap", positive_int, "N",
    ),
    # 2.5 billion parameters. A gather brings 0.4 GB for 1.6 Tflop of forward, which is meant to leave the
    # CPU time for FSDP2's hooks.
    *gpt(gpu_layers=12, gpu_width=4096),
)  # fmt: skip

# Training with the model itself split over the ranks

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

# Products that overlap with their own collectives


METHODS = ("torch", "ring", "symmetric-memory", "transformer-engine")  # Of gemm_overlap


def why_no_method(method: str, ranks: int, where: Defaults) -> str:
    """Why a method of gemm_overlap cannot be used here; empty if it can."""
    if method == "symmetric-memory":
        return why_no_gpu_each(ranks, where)
    if method == "transformer-engine":
        return why_no_transformer_engine(ranks, where, overlaps=True)
    return ""


def _gemm_overlap_fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    for name in ("m", "n"):
        require_multiple(name.upper(), getattr(options, name), ranks, "ranks")
    if fault := why_no_method(options.method, ranks, where):
        raise OptionsError(f"--method {options.method}: {fault}")


def _te_layernorm_mlp_fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    if fault := why_no_transformer_engine(ranks, where, overlaps=options.overlap):
        raise OptionsError(fault)
    require_multiple("--tokens", options.tokens, ranks_a_replica(options, ranks))


GEMM_OVERLAP = bundled(
    "gemm_overlap",
    "all-gather + product and product + reduce-scatter, by all ways to overlap them: a table",
    Option("--method", "by which", choices=("all", *METHODS), default="all"),
    # On two H200s 2.2 Tflop and 67 MB (bfloat16) each way; on two laptop cores 20 ms.
    Option("m", "tokens", positive_int, "M", on_gpu=8192, on_shared=2048, on_cpu=512),
    Option(
        "n", "of the weights, split over the ranks", positive_int, "N",
        on_gpu=32768, on_shared=4096, on_cpu=1024,
    ),
    Option(
        "k", "of the weights and of a token", positive_int, "K", on_gpu=8192, on_shared=1024, on_cpu=256,
    ),
    Option("--iters", "steps of each method in a round", positive_int, "N", default=20),
    *common("--figures"),
    fits=_gemm_overlap_fits,
)  # fmt: skip
TE_LAYERNORM_MLP = bundled(
    "te_layernorm_mlp",
    "TransformerEngine's LayerNormMLP, whose products overlap with transfers through user buffers",
    Option("--overlap", "transfers beside products, through user buffers", default=True),
    REPLICAS,
    Option("--layers", "each a layer norm and two products", positive_int, "N", default=8),
    Option("--width", "of a token", positive_int, "N", default=4096),
    Option("--tokens", "a step, of a replica", positive_int, "N", default=8192),
    *common("--losses"),
    fits=_te_layernorm_mlp_fits,
)  # fmt: skip

# Collectives beside other work, without a model

ALLREDUCE_MATMUL = bundled(
    "allreduce_matmul",
    "an all-reduce beside matrix products and host-to-device copies",
    Option("--mode", "how it is done", choices=("async", "sequential", "host-staged"), default="async"),
    # On two H200s a few ms each: 1 GiB reduced, 4 products of 1.1 Tflop, 128 MiB copied. On two laptop
    # cores a step of about 0.1 s.
    Option(
        "--size-mb", "reduced each step, in MiB", positive_float, "MB",
        on_gpu=1024.0, on_shared=64.0, on_cpu=32.0,
    ),
    Option(
        "--matrix", "rows and columns of each matrix", positive_int, "N",
        on_gpu=8192, on_shared=4096, on_cpu=1024,
    ),
    Option("--products", "matrix products a step", positive_int, "N", default=4),
    *common("--figures"),
)  # fmt: skip
DOUBLE_BUFFER = bundled(
    "double_buffer",
    "batches and gradients twice: one is copied or reduced while the other is used",
    Option(
        "--mode", "what overlaps", choices=("double-buffered", "slow-loader", "sequential"),
        default="double-buffered",
    ),
    Option("--loader-ms", "how long a batch takes to load", count, "MS", default=20),
    # 16 layers of 33 MB (bfloat16) and a batch of 134 MB on a GPU.
    Option("--layers", "linear layers", positive_int, "N", on_gpu=16, on_cpu=6),
    Option("--width", "of each layer", positive_int, "N", on_gpu=4096, on_shared=2048, on_cpu=512),
    Option("--batch", "rows a step", positive_int, "N", on_gpu=16384, on_cpu=512),
    *common("--losses"),
)  # fmt: skip
SMALL_MESSAGES = bundled(
    "small_messages",
    "many small all-reduces: separate, coalesced or flat; four ways to wait",
    Option("--send", "how", choices=("separate", "coalesced", "flat"), default="separate"),
    Option("--wait", "when", choices=("at-once", "late", "together", "polling"), default="together"),
    Option("--messages", "tensors, and products, a step", positive_int, "N", default=64),
    Option("--kb", "KiB of each tensor", positive_int, "N", on_gpu=256, on_shared=64, on_cpu=16),
    Option("--matrix", "rows and columns of the matrices", positive_int, "N", on_gpu=2048, on_cpu=192),
    *common("--figures"),
)  # fmt: skip

CAN_BE_LATE: tuple[Workload, ...] = (
    *(DDP, FSDP, ZERO, TENSOR_PARALLEL, PIPELINE, EXPERT_PARALLEL),
    *(GEMM_OVERLAP, TE_LAYERNORM_MLP, ALLREDUCE_MATMUL, DOUBLE_BUFFER, SMALL_MESSAGES),
)
"""All but faults, which runs any of them."""


class Run(NamedTuple):
    """A workload or script to run with a fault."""

    path: str
    words: list[str]  # Its options
    device: str  # ``auto``, ``cuda`` or ``cpu``
    workload: Workload | None  # None if it is not bundled


def what_runs(options: argparse.Namespace) -> Run:
    """Return the run that the options of faults ask for. Raises OptionsError."""
    script, *words = shlex.split(options.workload)
    if FAULTS.is_called(script):
        raise OptionsError("--workload: faults runs any workload but itself")
    workload = next((each for each in CAN_BE_LATE if each.is_called(script)), None)
    if workload is None:
        if not Path(script).is_file():
            raise OptionsError(f"--workload: there is no workload and no script called {script!r}")
        return Run(script, words, options.device, None)
    steps = ("--steps", str(options.steps)) if options.steps else ()
    words = ["--device", options.device, *words, *steps]
    try:
        return Run(str(workload.path), words, str(workload.check(words)["device"]), workload)
    except OptionsError as fault:
        raise OptionsError(f"--workload: {fault}") from fault


def _fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    run = what_runs(options)
    if run.workload is not None:
        try:
            run.workload.check_on(run.words, ranks, "cpu" if run.device == "cpu" else where)
        except OptionsError as fault:
            raise OptionsError(f"--workload: {fault}") from fault
    if options.by != "batches" and options.late_rank >= ranks:
        raise OptionsError(f"--late-rank: must be below {ranks}, the number of ranks")


FAULTS = bundled(
    "faults",
    "any of the others with one thing wrong on purpose: a rank that comes late",
    Option(
        "--workload", "the workload or script, and its options, in quotation marks", command, "WORDS",
        default="ddp",
    ),
    Option("--late-rank", "which", count, "N", default=1),
    Option(
        "--by", "why: it sleeps, computes more, collects garbage, waits for data, shares one CPU with "
        "another process; batches: all ranks compute more, another share in each step",
        choices=("sleep", "compute", "gc", "loader", "cpus", "batches"), default="sleep",
    ),
    Option("--share", "what it loses, as a share of an untouched step", positive_float, "S", default=0.2),
    Option("--untouched", "steps before the fault begins", positive_int, "N", default=30),
    Option("--steps", "stop after N steps; 0: as the workload says", count, "N", default=0),
    Option(
        "--device", "of a bundled workload; auto: a GPU where there is one",
        choices=("auto", "cuda", "cpu"), default="auto",
    ),
    fits=_fits,
)  # fmt: skip

WORKLOADS: tuple[Workload, ...] = (*CAN_BE_LATE, FAULTS)


def find(name_or_path: str) -> Workload | None:
    """Return the workload with this name (``ddp``, ``ddp.py``) or path; None if it is not bundled."""
    return next((workload for workload in WORKLOADS if workload.is_called(name_or_path)), None)
