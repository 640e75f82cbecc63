"""Reads torch's flight recorder: the last collectives that this process issued through NCCL.

ProcessGroupNCCL keeps it in C++ for its own diagnosis. A dump is a pickle of plain values. An unpickler
that knows no classes reads it, so it cannot run code.
"""

import io
import json
import math
import pickle
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from overlaptop.agent import placement
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.base import CollectiveCall, only
from overlaptop.timeline.collectives import (
    ELEMENT_BYTES,
    group_title,
    link_bytes,
    sum_links_where_known,
    sum_where_known,
)
from overlaptop.wire.messages import MAX_LAST_CALLS, IssuedCall

_KERNELS = (
    # part of a profiling name without underscores -> its possible kernels; the first match counts
    ("reducescatter", ("ReduceScatter",)),
    ("allreduce", ("AllReduce",)),
    ("allgather", ("AllGather",)),
    ("alltoall", ("SendRecv", "AlltoAll", "AllToAll")),
    ("broadcast", ("Broadcast",)),
    ("reduce", ("Reduce",)),
    ("gather", ("SendRecv", "Gather")),
    ("scatter", ("SendRecv", "Scatter")),
    ("send", ("SendRecv",)),
    ("recv", ("SendRecv",)),
)
_SEVERAL = ("all_to_all", "gather", "scatter")
"""Operations that send and receive several times in one launch."""
_STATES = {"started": "started", "completed": "ended"}
_COALESCED = "nccl:coalesced"


class FlightRecorderError(RuntimeError):
    """Why the flight recorder cannot be read."""


class FlightRecorder:
    """Torch's log of collectives, as NCCL launches."""

    def __init__(self) -> None:
        """Raises FlightRecorderError if this torch has none."""
        try:
            from torch._C import _distributed_c10d

            dump = getattr(_distributed_c10d, "_dump_nccl_trace")  # noqa: B009 - not in a CPU build
        except (ImportError, AttributeError) as fault:
            if raised_by_job(fault):
                raise
            raise FlightRecorderError("this torch has no flight recorder for NCCL") from None
        self._dump: Callable[..., bytes] = dump
        self.was_short = False  # True if the last read did not go back far enough, and never will again

    def read(self, from_unix_ns: int, before_ns: int = 0) -> list[CollectiveCall] | None:
        """Return the launches since `from_unix_ns`, oldest first; None if the log no longer goes back that
        far.

        Also returns launches from up to `before_ns` earlier, if still logged. It queries CUDA events: never
        call it while a CUDA graph is captured. Raises FlightRecorderError if the recorder is off, or its
        dump has an unknown format.
        """
        with _understood():
            content = self._content()
            entries = content["entries"]
            if entries[0]["record_id"] and entries[0]["time_created_ns"] > from_unix_ns:
                return None
            oldest_ns = from_unix_ns - before_ns
            self.was_short = entries[0]["record_id"] > 0 and entries[0]["time_created_ns"] > oldest_ns
            recent = (entry for entry in entries if entry["time_created_ns"] >= oldest_ns)
            return launches_of(recent, content.get("pg_config", {}))

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        """Return the last collectives of each group with their states, oldest first.

        Like `read`, never call it while a CUDA graph is captured; it raises the same errors.
        """
        with _understood():
            return last_calls_of(self._content()["entries"])

    def _content(self) -> dict[str, Any]:
        dump = self._dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
        content: dict[str, Any] = _PlainUnpickler(io.BytesIO(dump)).load()
        if not content["entries"]:
            raise FlightRecorderError(
                "the flight recorder is off: TORCH_FR_BUFFER_SIZE=2000 switches it on"
            )
        return content


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError) as fault:
        raise FlightRecorderError(f"the flight recorder's dump is not understood: {fault}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, tuples, strings and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


def launches_of(
    entries: Iterable[Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
    node_count: Callable[[Sequence[int]], int | None] = placement.node_count,
) -> list[CollectiveCall]:
    """Return the entries of a dump as launches, in order of issue.

    Coalesced operations have entries of their own, followed by one for their common launch with the same
    numbers. Entries that launch nothing are left out: operations on no data, and groups of one rank.
    """
    members = {name: json.loads(group["ranks"]) for name, group in groups.items()}
    sizes = {name: (len(ranks), nodes) for name, ranks in members.items() if (nodes := node_count(ranks))}
    entries = tuple(entries)
    uneven = _numbered_by_batches(entries)
    log = [entry for entry in entries if len(members.get(entry["process_group"][0], ())) != 1]
    coalesced: dict[_Numbers, list[Mapping[str, Any]]] = {
        _numbers(entry): [] for entry in log if entry["profiling_name"] == _COALESCED
    }
    launches = []
    for entry in log:
        parts = coalesced.get(_numbers(entry))
        if entry["profiling_name"] != _COALESCED:
            if parts is not None:
                parts.append(entry)
            elif _bytes(entry) != 0:
                launches.append(_launch(entry, [entry], members, sizes, uneven))
        elif parts and any(_bytes(part) != 0 for part in parts):
            launches.append(_launch(entry, parts, members, sizes, uneven))
    return launches


def last_calls_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, tuple[IssuedCall, ...]]:
    """Return the last collectives of each group, oldest first, without sends and receives, and without
    groups where these use up collectives' numbers.
    """
    found: dict[str, deque[IssuedCall]] = {}
    point_to_point = {_numbers(entry) for entry in entries if entry["is_p2p"]}
    uneven = _numbered_by_batches(entries)
    for entry in entries:
        if _numbers(entry) not in point_to_point and entry["process_group"][0] not in uneven:
            calls = found.setdefault(group_title(*entry["process_group"]), deque(maxlen=MAX_LAST_CALLS))
            calls.append(
                IssuedCall(
                    _op(entry),
                    _bytes(entry),
                    int(entry["collective_seq_id"]),
                    int(entry["time_created_ns"]),
                    _STATES.get(entry.get("state", ""), "issued"),
                )
            )
    return {group: tuple(calls) for group, calls in found.items()}


_Numbers = tuple[str, int, int]


def _numbers(entry: Mapping[str, Any]) -> _Numbers:
    """Return the key shared by the operations of one launch only."""
    group: str = entry["process_group"][0]
    return group, int(entry["collective_seq_id"]), int(entry["p2p_seq_id"])


def _numbered_by_batches(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return groups where batches of sends and receives use up collectives' numbers, as in older torch.

    Ranks may have different numbers of batches, so their collectives' numbers differ.
    """
    found, last = set(), dict[str, int]()
    for entry in entries:
        group, number, _ = _numbers(entry)
        if entry["is_p2p"] and number != last.get(group, number):
            found.add(group)
        last[group] = number
    return found


def _launch(
    entry: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    members: Mapping[str, Sequence[int]],
    sizes: Mapping[str, tuple[int, int]],
    uneven: Container[str],
) -> CollectiveCall:
    """`members`: the ranks of each group. `sizes`: ranks and nodes of groups, where known. `uneven`: groups
    whose numbers differ by rank.
    """
    names = sorted(set(map(_op, parts)))
    ranks, nodes = sizes.get(entry["process_group"][0], (None, 1))
    together = entry["profiling_name"] == _COALESCED
    return CollectiveCall(
        op=f"coalesced {'+'.join(names)}" if together else names[0],
        bytes=sum_where_known(map(_bytes, parts)),
        group=group_title(*entry["process_group"]),
        is_async=True,
        backend="nccl",
        device_type="cuda",
        device_index=-1,
        coalesced=together,
        link=sum_links_where_known(link_bytes(_op(part), _bytes(part), ranks, nodes) for part in parts),
        sequence=None
        if parts[0]["is_p2p"] or entry["process_group"][0] in uneven
        else int(entry["collective_seq_id"]),
        sends_to=_only_peer(parts, "->", members),
        receives_from=_only_peer(parts, "<-", members),
        issued_ns=int(entry["time_created_ns"]),
        kernels=tuple(kind for name in names for kind in _kernels_of(name)),
        several=together or names[0] in _SEVERAL or "coalesced" in names[0],
    )


def _only_peer(
    parts: Iterable[Mapping[str, Any]], way: str, members: Mapping[str, Sequence[int]]
) -> int | None:
    """Return the global rank that these sends go to (``nccl:send 0->1``, in the group's numbers) or these
    receives come from (``nccl:recv 0<-1``); None: unknown, or several.
    """
    peers = []
    for part in parts:
        peer = str(part["profiling_name"]).partition(way)[2]
        ranks = members.get(part["process_group"][0], ())
        known = peer.isdigit() and peer.isascii() and int(peer) < len(ranks)
        peers.append(ranks[int(peer)] if known else None)
    return only(peers)


def _op(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).removeprefix("nccl:").partition(" ")[0]


def _kernels_of(name: str) -> tuple[str, ...]:
    return next((kernels for part, kernels in _KERNELS if part in name.replace("_", "")), ())


def _bytes(entry: Mapping[str, Any]) -> int | None:
    """Return the larger of input and output bytes; None for types of unknown size."""
    sides = []
    for side in ("input", "output"):
        dtypes = entry[f"{side}_dtypes"]
        if any(dtype not in ELEMENT_BYTES for dtype in dtypes):
            return None
        shapes = zip(entry[f"{side}_sizes"], dtypes, strict=True)
        sides.append(sum(int(math.prod(shape)) * ELEMENT_BYTES[dtype] for shape, dtype in shapes))
    return max(sides)
