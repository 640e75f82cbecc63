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
    """What a span is. Any kernel that is not known to communicate computes."""

    COMPUTE = "compute"
    COMM = "comm"
    COPY = "copy"
    """Host-device and device-local copies and memsets."""


Kind: TypeAlias = Literal["kernel", "memcpy", "peer_memcpy", "memset"]

_LANE_OF_KIND: dict[Kind, Lane] = {
    "memcpy": Lane.COPY,
    "peer_memcpy": Lane.COMM,  # over NVLink or PCIe to another GPU
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
    # TransformerEngine
    r"k?userbuffers_",
)
_COMM_KERNEL = re.compile(
    "(?<![A-Za-z_])(?:" + "|".join(_COMM_KERNELS).replace("::", r"(?:::|L?\d+)") + ")"
)

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
        return Lane.COMM if _COMM_KERNEL.search(name) else Lane.COMPUTE
