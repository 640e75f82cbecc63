"""Shared facts about collectives: element sizes, group names, and bytes on the links."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Int": 4, "Long": 8,
    "Half": 2, "BFloat16": 2, "Float": 4, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of one element, by c10's type name, as in torch's flight recorder and profiler."""


class LinkBytes(NamedTuple):
    """Bytes that one rank sends and receives over the links of its node, and to and from other nodes."""

    tx: int
    rx: int
    nic_tx: int = 0
    nic_rx: int = 0


_SHARES = {
    # text in an op's name, without underscores (the first match counts) -> a rank's share of S bytes among
    # n ranks: factors of (n-1)/n S each way, S sent, S received
    "barrier": (0, 0, 0),
    "reducescatter": (1, 0, 0),
    "allreduce": (2, 0, 0),
    "allgather": (1, 0, 0),
    "alltoall": (1, 0, 0),
    "broadcast": (1, 0, 0),
    "reduce": (1, 0, 0),
    "send": (0, 1, 0),
    "recv": (0, 0, 1),
}

_UNSHARED = frozenset(("broadcast", "reduce", "send", "recv"))
"""Operations whose bytes all pass one rank's link."""


def link_bytes(op: str, size_bytes: int | None, ranks: int | None, nodes: int = 1) -> LinkBytes | None:
    """Return the bytes that one rank sends and receives in one operation of `ranks` ranks, for a ring.
    `nodes`: the nodes that have the ranks, each as many. A ring leaves each node once. The rank gets the
    mean of its node's ranks.

    `op` is spelled as in c10d's dispatcher, torch's flight recorder or its profiler: ``allreduce_``,
    ``_all_gather_base``, ``reduce_scatter_tensor_coalesced``, ``send``. `size_bytes`, S below, is the
    larger of input and output. With n ranks (nccl-tests, doc/PERFORMANCE.md):

    - all-reduce: ``2 (n-1)/n S`` each way;
    - all-gather, reduce-scatter, all-to-all: ``(n-1)/n S`` each way;
    - broadcast, reduce: a chain. All ranks but one end send S, and all but the other end receive it. The
      ends are not known, so each rank gets the mean, ``(n-1)/n S`` each way;
    - send, receive: S, one way. A barrier: nothing.

    NCCL moves more if it sends flags with the data (small messages), and a different amount if the switch
    adds up (NVLS, on three or more GPUs: ``(n+1)/n S`` each way for an all-reduce). None if not known: for
    other ops (also gather and scatter, whose root moves more than the others), for several different ops in
    one, for a send or receive in a group of several nodes, and without a size or group.
    """
    if ranks is not None and ranks <= 1:
        return LinkBytes(0, 0)
    kind = kind_of(op)
    if kind is None or size_bytes is None or ranks is None:
        return None
    rounds, sent, received = _SHARES[kind]
    if nodes > 1 and (sent or received):
        return None
    rounds_bytes = rounds * (ranks - 1) * size_bytes // ranks
    nic_bytes = 0
    if nodes > 1:  # the part of the passes from rank to rank that leads to another node
        part, passes = nodes, ranks
        if kind in _UNSHARED:
            part, passes = nodes - 1, ranks - 1
        elif kind == "alltoall":
            part, passes = ranks - ranks // nodes, ranks - 1
        nic_bytes = rounds_bytes * part // passes
    own_bytes = rounds_bytes - nic_bytes
    return LinkBytes(own_bytes + sent * size_bytes, own_bytes + received * size_bytes, nic_bytes, nic_bytes)


def sum_links_where_known(parts: Iterable[LinkBytes | None]) -> LinkBytes | None:
    """Return the sum each way. None if any part is not known."""
    known = tuple(parts)
    columns = zip(LinkBytes(0, 0), *(part for part in known if part is not None), strict=True)
    return None if None in known else LinkBytes(*map(sum, columns))


@lru_cache(maxsize=256)
def kind_of(op: str) -> str | None:
    """Return the operation of `op`, spelled like ``allreduce``, ``allgather``, ``reducescatter``, ``send``.
    `op` is as in `link_bytes`, or the name of NCCL's kernel. None for other operations (gather, scatter)
    and for several different ones in one.
    """
    name = op.replace("_", "").lower()
    return next((kind for kind in _SHARES if kind in name and "+" not in op), None)


@lru_cache(maxsize=256)
def has_root(op: str) -> bool:
    """Whether one rank sends to all others (broadcast, scatter) or receives from them (reduce, gather).
    Only then may a rank leave before the last one arrives. False for several different operations in one.
    """
    kind, name = kind_of(op), op.lower()
    other = kind is None and "+" not in op and ("gather" in name or "scatter" in name)
    return other or kind in ("broadcast", "reduce")


@lru_cache(maxsize=256)
def is_point_to_point(op: str) -> bool:
    """Whether `op` is a send or a receive, or several of them in one launch: ``coalesced recv_+send``."""
    return all(kind_of(part) in ("send", "recv") for part in op.removeprefix("coalesced ").split("+"))


def bus_bandwidth(op: str, size_bytes: int | None, ranks: int, transfer_ns: int | None) -> float | None:
    """Bytes per second by nccl-tests' definition (doc/PERFORMANCE.md): ``factor * bytes / time``.

    The factor makes the result comparable with a link's peak for any number of ranks: ``2 (n-1)/n`` for an
    all-reduce; ``(n-1)/n`` for all-gather, reduce-scatter and all-to-all; 1 for broadcast, reduce, send and
    receive. `size_bytes` is the larger of input and output, `transfer_ns` the time in which bytes moved.
    None if any of these is not known, for a barrier, and for a group of one rank.
    """
    kind = kind_of(op)
    if kind is None or kind == "barrier" or not size_bytes or not transfer_ns or ranks < 2:
        return None
    rounds = _SHARES[kind][0]
    factor = 1.0 if kind in _UNSHARED else rounds * (ranks - 1) / ranks
    return factor * size_bytes / transfer_ns * 1e9


def group_title(name: object, description: object) -> str:
    """Return a process group's name, with its description if it has one."""
    described = description not in (None, "", "undefined")
    return f"{name} {description}" if described else str(name)


def sum_where_known(values: Iterable[int | None]) -> int | None:
    known = tuple(values)
    return None if None in known else sum(value or 0 for value in known)
