"""Messages with fields at their bounds, made from the declarations: what the codec lets in at an edge."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect
from msgspec.structs import replace

from overlaptop.wire.bounds import MAX_DURATION_NS
from overlaptop.wire.codec import WireError, encode
from overlaptop.wire.commands import Argument, RankOutcome
from overlaptop.wire.devices import GpuLink, GpuSite, Nic, NicErrors, NodeShare, NumaNode, Unknown
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import (
    CollectiveSpan,
    EnvironmentVariable,
    GroupCalls,
    GroupMembers,
    IssuedCall,
    PhaseSpan,
    StackLine,
)
from overlaptop.wire.schema import Message

LONG = "wide 測 " * 40
HOSTILE = "\x1b]0;x\x07\u202e\r\n[red]{value}"
PARTS = {
    type(part): part
    for part in (
        PhaseSpan("forward", 0, 9),
        EnvironmentVariable("NCCL_MAX_CTAS", "4"),
        StackLine("train.py:57 in collate", 9),
        IssuedCall("allreduce_", 1 << 20, 57, 9, "issued"),
        GroupCalls("0 default_pg", (0, 1), (IssuedCall("allreduce_", 1 << 20, 57, 9),)),
        CollectiveSpan("allreduce_", 1 << 20, "default_pg", True, 20, 30),
        GroupMembers("0 default_pg", (0, 1)),
        Argument("steps", 5),
        RankOutcome(1, "accepted", "unknown", "rank 1 has not reported", "silent"),
        Unknown("power_mw", "not supported"),
        NumaNode(0, "0-31", 1 << 36),
        Nic("mlx5_0", 0, 100_000_000_000),
        NicErrors("link_downed", 2),
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
    edges = {
        field.name: tuple(_edges(field.type, base, field.name))
        for field in inspect.type_info(type(base)).fields  # type: ignore[attr-defined]
        if field.name not in ("rank", "command", "job", "id", "protocol")
    }
    edges = {name: values for name, values in edges.items() if values}
    changes = [{name: value} for name, values in edges.items() for value in values]
    changes += [
        {name: values[at % len(values)] for name, values in edges.items()}
        for at in range(max(map(len, edges.values())))
    ]
    return [changed for change in changes if _travels(changed := replace(base, **change))]


def _edges(declared: inspect.Type, base: Any, name: str) -> Iterator[Any]:
    match declared:
        case inspect.UnionType():
            for each in declared.types:
                yield from _edges(each, base, name)
        case inspect.NoneType():
            yield None
        case inspect.BoolType():
            yield from (False, True)
        case inspect.IntType() | inspect.FloatType():
            yield from (declared.ge, declared.le)
        case inspect.StrType(pattern=None):
            yield from ("", HOSTILE, LONG)
        case inspect.StrType(pattern=pattern) if pattern and "[" not in pattern:  # one of some words
            yield from (re.sub(r"\\(.)", r"\1", word) for word in pattern[3:-3].split("|"))
        case inspect.VarTupleType(item_type=inspect.IntType(ge=int(least), le=int(most))):
            yield from ((), (least, most) * 3, (most, least), (most,) * 2, (most - 1, most))
            if least == -MAX_DURATION_NS:
                yield from ((0, 0), (-1, 1))
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
            yield ()
            inner = at_bounds(PARTS[cls])
            yield tuple(each for each in inner if _travels(replace(base, **{name: (each,)})))
        case inspect.VarTupleType(item_type=item):
            yield from ((), tuple(_edges(item, base, name)))


def _travels(message: Any) -> bool:
    if not isinstance(message, Message):
        return True  # the message that it is in is asked
    try:
        encode(message)
    except WireError:
        return False
    return True
