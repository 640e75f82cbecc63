"""Messages with fields at their bounds, made from the declarations: what the codec lets in at an edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any

from overlaptop.wire import codec
from overlaptop.wire.bounds import BOUNDS
from overlaptop.wire.codec import WireError, encode
from overlaptop.wire.devices import (
    LINK_KINDS,
    NUMA_STATES,
    GpuLink,
    GpuSite,
    Nic,
    NodeShare,
    NumaNode,
    Unknown,
)
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import (
    LOST,
    OUTCOME_STATES,
    PHASES,
    REPORT_STATES,
    SOURCES,
    Argument,
    CollectiveSpan,
    PhaseSpan,
    RankOutcome,
)

LONG = "wide 測 " * 40
HOSTILE = "\x1b]0;x\x07\u202e\r\n[red]{value}"
NUMBERS = {**BOUNDS, "int": (-(1 << 63), (1 << 63) - 1)}
LEAST_NS, MOST_NS = BOUNDS["OffsetNs"]
EDGES: dict[str, tuple[Any, ...]] = {
    "RankInfo.source": SOURCES,
    "PhaseSpan.name": PHASES,
    "Notice.level": codec.NOTICE_LEVELS,
    "CommandReport.state": REPORT_STATES,
    "CommandOutcome.state": OUTCOME_STATES,
    "RankOutcome.reported": OUTCOME_STATES,
    "RankOutcome.state": OUTCOME_STATES,
    "RankOutcome.lost": LOST,
    "GpuLink.kind": LINK_KINDS,
    "NumaFacts.state": NUMA_STATES,
    "Knob.choices": ((), (-(1 << 31),), (1 << 31, 0, -(1 << 31))),
    "Knob.least": (-(1 << 31), 1 << 31),
    "Knob.most": (1 << 31, -(1 << 31)),
    "HubStatus.silent_ranks": ((), (0, 1, codec.MAX_RANK)),
    "GradientFacts.size_bytes": ((), (0,), (BOUNDS["Count"][1],) * 3),
    "bool": (False, True),
    "float": (0.0, 1.0),
    "str": ("", HOSTILE, LONG),
    "tuple[int, ...]": (
        (), (LEAST_NS, MOST_NS) * 3, (MOST_NS, LEAST_NS), (0, 0), (MOST_NS - 1, MOST_NS), (-1, 1),
    ),
    "tuple[str, ...]": ((), ("", HOSTILE, LONG)),
}  # fmt: skip
"""By field, or by annotation."""
INNER = {
    f"tuple[{type(inner).__name__}, ...]": inner
    for inner in (
        PhaseSpan("forward", 0, 9),
        CollectiveSpan("allreduce_", 1 << 20, "default_pg", True, 20, 30),
        Argument("steps", 5),
        RankOutcome(1, "accepted", "unknown", "rank 1 has not said", "silent"),
        Unknown("power_mw", "not supported"),
        NumaNode(0, "0-31", 1 << 36),
        Nic("mlx5_0", 0, 100_000_000_000),
        GpuSite(0, "GPU-0", "NVIDIA H200", "0000:00:00.0", 0),
        GpuLink("pcie", "GPU-1", 18, "PIX"),
        NodeShare(0, 32),
        Knob("bucket_cap_mb", 25, "25", "25", 1, 10_000),
    )
}  # fmt: skip


def at_bounds(base: Any) -> list[Any]:
    """The message with one field after the other at each of its edges, and with all at once, as far as the
    codec takes it. Whom it is about stays.
    """
    edges = {field.name: tuple(_edges(base, field)) for field in fields(base)}
    edges = {name: values for name, values in edges.items() if values}
    changes = [{name: value} for name, values in edges.items() for value in values]
    changes += [
        {name: values[at % len(values)] for name, values in edges.items()}
        for at in range(max(map(len, edges.values())))
    ]
    return [changed for change in changes if _travels(changed := replace(base, **change))]


def _edges(base: Any, field: Field[Any]) -> Iterator[Any]:
    annotation, kind = str(field.type), str(field.type).removesuffix(" | None")
    if field.name in ("rank", "command", "job", "id", "protocol"):
        return
    if field.name in ("local_rank", "world_size"):
        yield from (0, codec.MAX_RANK)
    elif found := EDGES.get(f"{type(base).__name__}.{field.name}") or EDGES.get(kind) or NUMBERS.get(kind):
        yield from found
    else:
        yield ()
        inner = at_bounds(INNER[kind])
        yield tuple(each for each in inner if _travels(replace(base, **{field.name: (each,)})))
    if annotation != kind:
        yield None


def _travels(message: Any) -> bool:
    if f"tuple[{type(message).__name__}, ...]" in INNER:
        return True  # the message that it is in is asked
    try:
        encode(message)
    except WireError:
        return False
    return True
