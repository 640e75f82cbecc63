"""Products that overlap with their own collectives."""

import argparse

from overlaptop.workloads.entries.workload import (
    REPLICAS,
    bundled,
    common,
    ranks_a_replica,
    require_multiple,
    why_no_gpu_each,
    why_no_transformer_engine,
)
from overlaptop.workloads.options import Defaults, Option, OptionsError, positive_int


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
    Option(
        "--method", "by which",
        choices=("all", "torch", "ring", "symmetric-memory", "transformer-engine"), default="all",
    ),
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
    Option("--fp8", "multiply in eight bits", default=False),
    REPLICAS,
    Option("--layers", "each a layer norm and two products", positive_int, "N", default=8),
    Option("--width", "of a token", positive_int, "N", default=4096),
    Option("--tokens", "a step, of a replica", positive_int, "N", default=8192),
    *common("--losses"),
    fits=_te_layernorm_mlp_fits,
)  # fmt: skip
