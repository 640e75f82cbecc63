"""Lanes: what a GPU activity is, by its kind and its kernel's name.

The built-in patterns know the communication libraries by the names their kernels carry, demangled
(torch.profiler) or mangled (CUPTI). They match at the start of an identifier only: Inductor names its
fused *compute* kernels after the operations they come from (``triton_poi_fused_add_all_reduce_4``).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal, TypeAlias


class Lane(StrEnum):
    """Kind of a span. A kernel with an unknown name counts as compute."""

    COMPUTE = "compute"
    COMM = "comm"
    COPY = "copy"  # Host-device and device-local copies and memsets
    FUSED = "fused"
    """Kernels that both compute and communicate. How much they hide is not visible from outside."""
    IDLE = "idle"  # Kernels that only let time pass, with no work in them


Kind: TypeAlias = Literal["kernel", "memcpy", "peer_memcpy", "memset", "cpu_op"]

_LANE_OF_KIND: dict[Kind, Lane] = {
    "memcpy": Lane.COPY,
    # Over NVLink or PCIe to another GPU: symmetric memory's chunks, and NCCL's copy-engine collectives,
    # which launch no kernel (cudaMemcpyBatchAsync in its src/ce_coll.cc).
    "peer_memcpy": Lane.COMM,
    "memset": Lane.COPY,
    # Handing a collective over to gloo is CPU work, whatever the operator's name.
    "cpu_op": Lane.COMPUTE,
}

# `::` stands for itself or, in a mangled name, for the length of the identifier that follows (with an
# L before it if that is static). Underscores before an identifier do not count: Triton's kernels are
# often private functions.
_COMM_KERNELS = (
    # NCCL today, its symmetric-memory kernels, NCCL before 2.8; RCCL has these names and its own. Some
    # tools write names in lower case
    r"(?i:nccl(?:DevKernel|DevFunc|Kernel|Symk))",
    r"nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|SendRecv)\w*Kernel",
    r"(?i:rccl\w*kernel)|mscclKernel",
    # oneCCL (Intel), HCCL (Habana, Huawei, MTIA)
    r"oneccl|ccl::|hccl(?:Kernel|_|::)|hcom_",
    # torch.distributed._symmetric_memory, Megatron's copy of it, and c10d's kernels on top of NVSHMEM and
    # NCCL's device API
    r"multimem_(?:one_shot|two_shot|all_reduce|all_gather|reduce_scatter)",
    r"(?:lamport_style_)?(?:one|two)_shot_(?:\w+_)?(?:all_reduce|reduce_scatter)",
    r"c10d::(?:symmetric_memory|nvshmem_extension|nccl_extension)::",
    # all-reduces and all-gathers of vLLM, SGLang and aiter; QuickReduce
    r"cross_device_(?:reduce|all_gather)|all_reduce_(?:one|two)_shot",
    r"allgather_(?:naive|vec|lastdim)|reduce_scatter_cross_device",
    r"quickreduce::|allreduce_prototype",
    # TensorRT-LLM and FlashInfer: all-reduces, and the exchange of tokens between experts
    r"(?:moe\w*_)?allreduce_fusion_kernel|(?i:(?:one|two)shotAllReduce)\w*Kernel",
    r"kernel_cutlass_(?!\w*(?i:gemm))\w*?AllReduce(?:One|Two)Shot",
    r"moe(?:A2A(?:Dispatch|Combine)|AllToAll)\w*Kernel",
    # MSCCL++: every kernel with one of its channels as an argument
    r"mscclpp::",
    # DeepEP and copies of its names; its layout, copy and reduce kernels stay on their GPU: compute
    r"(?:deep_ep::(?:legacy::)?|uccl::)(?:intranode|internode|internode_ll)::",
    r"deep_ep::elastic::(?:(?:hybrid_)?(?:dispatch|combine)|barrier|engram_fetch|pp_)(?!\w*epilogue)",
    r"hybrid_ep::(?:dispatch|combine)_kernel",
    # MORI's expert parallelism
    r"Ep(?:Dispatch|Combine)\w*Kernel",
    r"nvshmem|rocshmem|\w+_on_stream_kernel",
    # Flux's own, src/cuda/cudaipc_barrier_all.cu and src/coll/all_gather_impls.cu
    r"CudaIpcBarrierAllKernel|ag_a2a_mode_kernel",
    # TransformerEngine's user buffers (common/comm_gemm_overlap/userbuffers/userbuffers.cu): they move
    # chunks beside products that are cuBLAS's own kernels, so nothing is fused there
    r"k?userbuffers_",
)
# A product and its transfer in one kernel. Reductions with a norm behind them (allreduce_fusion_kernel) do
# not count: their computation takes no time of its own.
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
    """Return a pattern for identifiers that begin like one of these, in mangled names too."""
    return re.compile("(?<![A-Za-z_])_*(?:" + "|".join(patterns).replace("::", r"(?:::|L?\d+)") + ")")


# Functions named after a collective communicate, whoever wrote them. With other words in the name, they
# may. Only the text before template arguments and parameters counts.
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all(?!ow)|(?<![a-z])a2a(?![a-z])|send_?recv",
    re.IGNORECASE,
)
_LOOKS_LIKE_COMM = re.compile(
    r"peer_?(?:put|get|copy)|(?:moe|experts?|tokens?)_?\w*(?:dispatch|combine)"
    r"|(?:dispatch|combine)_?(?:tokens|kernel)|(?<![a-z])(?:send|recv|broadcast)_?(?:kernel|impl)",
    re.IGNORECASE,
)
_PRODUCT = re.compile(r"gemm|matmul", re.IGNORECASE)
_STAYS_ON_ITS_GPU = re.compile(
    # Inductor's; reductions within a block or a warp; the local halves of communication libraries
    r"^triton_[a-z]+_fused|warp|block|thread|lane|wave|cub(?:::|\d)|at(?:::|\d)native|deep_ep"
    r"|A2A(?:Prepare|Sanitize)",
    re.IGNORECASE,
)

_LANE_OF_KERNEL = (
    (Lane.FUSED, _any_of(_FUSED_KERNELS)),
    (Lane.COMM, _any_of(_COMM_KERNELS)),
    (Lane.IDLE, _IDLE_KERNEL),
)
"""The first match counts: a fused kernel's arguments may mention its parts."""

_NAMES_CACHED = 4096
MAX_LOOK_ALIKES = 5  # Names reported at once. Others follow once there are rules for these.


@dataclass(frozen=True, slots=True)
class LaneRule:
    """A user's own rule: activities whose name contains a match of `pattern` belong to `lane`."""

    lane: Lane
    pattern: re.Pattern[str]


def parse_rule(text: str) -> LaneRule:
    """Return a rule from ``LANE=REGEX``, such as ``comm=my_allreduce.*``. Raises ValueError if it is none,
    with one line for the user.
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
    """The user's rules, then the built-in ones. The first match wins. Results are cached."""

    def __init__(self, extra: Iterable[LaneRule] = ()) -> None:
        self._extra = tuple(extra)
        self._lane = lru_cache(maxsize=_NAMES_CACHED)(self._classify)

    def lane(self, name: str, kind: Kind) -> Lane:
        """Return the lane of an activity. `name`: as in CUPTI or torch.profiler, mangled or not."""
        return self._lane(name, kind)

    def look_alike(self, name: str) -> str:
        """Return the part of a compute kernel's name that looks like a collective's, unless a user's rule
        matches.
        """
        head = _head(name)
        found = _LOOKS_LIKE_COMM.search(head)
        if found is None or _STAYS_ON_ITS_GPU.search(head) or self.lane(name, "kernel") is not Lane.COMPUTE:
            return ""
        if any(rule.pattern.search(name) for rule in self._extra):
            return ""
        # A mangled name does not show where the identifier ends.
        return found[0] if head.startswith("_Z") else re.findall(r"\w+", head)[-1]

    def _classify(self, name: str, kind: Kind) -> Lane:
        for rule in self._extra:
            if rule.pattern.search(name):
                return rule.lane
        if kind != "kernel":
            return _LANE_OF_KIND[kind]
        for lane, known in _LANE_OF_KERNEL:
            if known.search(name):
                return lane
        head = _head(name)
        if _COLLECTIVE.search(head) and not _STAYS_ON_ITS_GPU.search(head):
            return Lane.FUSED if _PRODUCT.search(head) else Lane.COMM
        return Lane.COMPUTE


def _head(name: str) -> str:
    """Return the function's own name with its namespaces, or all of a mangled name."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]


def describe_look_alikes(parts: Iterable[str]) -> str:
    """Name the kernels that look like communication, by `look_alike`, and the option that makes them so."""
    few = sorted(set(parts))[:MAX_LOOK_ALIKES]
    return (
        f"counted as compute, but named like communication: {', '.join(few)}; "
        f"if they communicate: --lane 'comm={'|'.join(few)}'"
    )
