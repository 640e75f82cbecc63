"""Lanes: what a GPU activity is, by its kind and its kernel's name.

The built-in patterns know the communication libraries by the names their kernels carry, demangled
(torch.profiler) or mangled (CUPTI). They match at the start of an identifier only: Inductor names its
fused *compute* kernels after the operations they come from (``triton_poi_fused_add_all_reduce_4``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal, TypeAlias


class Lane(StrEnum):
    """What a span is. Any kernel that is not known by its name computes."""

    COMPUTE = "compute"
    COMM = "comm"
    COPY = "copy"
    """Host-device and device-local copies and memsets."""
    FUSED = "fused"
    """Kernels that compute and communicate in one: what of it hides what cannot be told from outside."""
    IDLE = "idle"
    """Kernels that only let time pass: nothing runs in them."""


Kind: TypeAlias = Literal["kernel", "memcpy", "peer_memcpy", "memset"]

_LANE_OF_KIND: dict[Kind, Lane] = {
    "memcpy": Lane.COPY,
    # Over NVLink or PCIe to another GPU: symmetric memory's chunks, and NCCL's copy-engine collectives,
    # which launch no kernel (cudaMemcpyBatchAsync in its src/ce_coll.cc).
    "peer_memcpy": Lane.COMM,
    "memset": Lane.COPY,
}

# `::` stands for itself or, in a mangled name, for the length of the identifier that follows (with an
# L before it where that is static).
_COMM_KERNELS = (
    # NCCL today, its symmetric-memory kernels, NCCL before 2.8; RCCL has these names and its own
    r"ncclDevKernel|ncclKernel|ncclSymk",
    r"nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|SendRecv)\w*Kernel",
    r"rccl\w*Kernel|mscclKernel",
    # torch.distributed._symmetric_memory, and c10d's kernels on top of NVSHMEM and NCCL's device API
    r"multimem_(?:one_shot|two_shot|all_reduce|all_gather|reduce_scatter)",
    r"(?:one|two)_shot_(?:all_reduce|reduce_scatter)",
    r"c10d::(?:symmetric_memory|nvshmem_extension|nccl_extension)::",
    # all-reduces of vLLM, SGLang and aiter; of TensorRT-LLM and FlashInfer
    r"cross_device_reduce",
    r"allreduce_fusion_kernel|(?:one|two)ShotAllReduceKernel",
    # DeepEP; its layout, copy and reduce kernels stay on their GPU and are compute
    r"deep_ep::(?:legacy::)?(?:intranode|internode|internode_ll)::",
    r"deep_ep::elastic::(?:(?:hybrid_)?(?:dispatch|combine)|barrier|engram_fetch|pp_)(?!\w*epilogue)",
    r"hybrid_ep::(?:dispatch|combine)_kernel",
    r"nvshmem|rocshmem|\w+_on_stream_kernel",
    # Flux's own, src/cuda/cudaipc_barrier_all.cu and src/coll/all_gather_impls.cu
    r"CudaIpcBarrierAllKernel|ag_a2a_mode_kernel",
    # TransformerEngine's user buffers (common/comm_gemm_overlap/userbuffers/userbuffers.cu): they move
    # chunks beside products that are cuBLAS's own kernels, so nothing is fused there
    r"k?userbuffers_",
)
# A product and its transfer in one kernel. Reductions with a norm behind them (allreduce_fusion_kernel) are
# not: what they compute takes no time of its own.
_FUSED_KERNELS = (
    # Flux, class names of its src/ag_gemm, src/gemm_rs, src/moe_ag_scatter and src/moe_gather_rs
    r"Sm90(?:AG|RS)GemmUniversal|Sm80AGGemmWithEpilogueVisitor|Sm89AGGemmWithAbsMax",
    r"VisitorAuxStoreScatter(?:InterNode)?|Sm90AuxStoreReduceScatter|Sm90AGScatterGemmArrayUniversal",
    r"GatherRSGemmGroupedWithAbsMax",
    # and of 2024, as its issue 7 shows one: all but CommNone and AllGather (a product alone), flux.h
    r"CommOpEnum(?:\)|E)[2-9]",
    # torch.ops.symm_mem._async_input_mm: test_symmetric_memory.py of torch looks for it in a profile
    r"PersistentAsyncInputScheduler",
    # Triton-distributed, python/triton_dist/kernels: they wait for each tile, or write it to its peer
    r"kernel_consumer_gemm|kernel_gemm_rs_producer",
    # DeepGEMM, deep_gemm/impls/sm*_mega_moe.cuh: dispatch, both products and combine
    r"sm\d+_\w*mega_moe_impl",
)
# at::cuda::spin_kernel is torch.cuda._sleep (ATen/native/cuda/Sleep.cu), with which symmetric memory's
# pipelines put two streams in order.
_IDLE_KERNEL = re.compile(r"at(?:::|\d)cuda.*?spin_kernel")


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """What finds an identifier that begins like one of these, in mangled names too."""
    return re.compile("(?<![A-Za-z_])(?:" + "|".join(patterns).replace("::", r"(?:::|L?\d+)") + ")")


_LANE_OF_KERNEL = (
    (Lane.FUSED, _any_of(_FUSED_KERNELS)),
    (Lane.COMM, _any_of(_COMM_KERNELS)),
    (Lane.IDLE, _IDLE_KERNEL),
)
"""The first that matches counts: a fused kernel's arguments may mention what it is made of."""

_NAMES_CACHED = 4096


@dataclass(frozen=True, slots=True)
class LaneRule:
    """A user's own rule: activities whose name contains a match of `pattern` belong to `lane`."""

    lane: Lane
    pattern: re.Pattern[str]


def parse_rule(text: str) -> LaneRule:
    """A rule from ``LANE=REGEX``, such as ``comm=my_allreduce.*``.

    Raises:
        ValueError: not a rule, in one line for the user.
    """
    lane, separator, pattern = text.partition("=")
    if not separator or not pattern:
        raise ValueError(f"a lane rule is LANE=REGEX, such as comm=my_allreduce, not {text!r}")
    if lane not in tuple(Lane):
        raise ValueError(f"unknown lane {lane!r} in {text!r}: one of {', '.join(Lane)}")
    try:
        return LaneRule(Lane(lane), re.compile(pattern))
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r} ({error})") from None


class LaneRules:
    """The user's rules, first match wins, and below them the built-in ones.

    Answers are kept per name and kind, so a name costs its regular expressions once.
    """

    def __init__(self, extra: Iterable[LaneRule] = ()) -> None:
        self._extra = tuple(extra)
        self._lane = lru_cache(maxsize=_NAMES_CACHED)(self._classify)

    def lane(self, name: str, kind: Kind) -> Lane:
        """The lane of an activity; `name` as CUPTI or torch.profiler gives it, mangled or not."""
        return self._lane(name, kind)

    def _classify(self, name: str, kind: Kind) -> Lane:
        for rule in self._extra:
            if rule.pattern.search(name):
                return rule.lane
        if kind != "kernel":
            return _LANE_OF_KIND[kind]
        return next((lane for lane, known in _LANE_OF_KERNEL if known.search(name)), Lane.COMPUTE)
