"""Layouts of CUPTI's records by version, and their conversion to a numpy table.

Sizes and offsets are from NVIDIA's header cupti_activity.h (structs CUpti_ActivityKernel9 to 13, Memcpy5 to
7, Memset4 and 5, MemcpyPtoP4, Synchronization and Synchronization2), printed with sizeof and offsetof for
CUDA 12.1 to 13.5. The fields read here have the same offsets in all versions; new versions grew at the end.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MEMCPY, MEMSET, CONCURRENT_KERNEL, PEER_MEMCPY, SYNCHRONIZATION = 1, 2, 10, 22, 38  # CUpti_ActivityKind
KINDS = (CONCURRENT_KERNEL, MEMCPY, MEMSET, PEER_MEMCPY, SYNCHRONIZATION)

STREAM_WAITS = 2
"""CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: a stream waits; the other types block the CPU."""

_COPY_KIND_PEER, _COPY_KIND_TO_HOST = 10, 2
"""CUPTI_ACTIVITY_MEMCPY_KIND_PTOP and _DTOH, in an ordinary memcpy's record."""
_PAGEABLE = 1  # CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE

Sizes: TypeAlias = Mapping[int, int]  # Bytes of a record, by kind

_FIRST_VERSION = 18
_LAST_VERSION = 130599
_SIZES = (
    # from this CUPTI_API_VERSION on: bytes of a kernel, copy, memset, synchronisation
    (18, 208, 88, 88, 40),  # CUDA 12.1
    (26, 208, 96, 88, 56),  # 12.8
    (130000, 216, 96, 88, 56),  # 13.0
    (130100, 224, 96, 88, 56),  # 13.1, 13.2
    (130300, 232, 96, 88, 56),  # 13.3
    (130400, 248, 112, 104, 56),  # 13.4, 13.5
)
_PEER_MEMCPY_BYTES = 96

ACTIVITY = np.dtype(
    [
        ("kind", np.uint8),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("device", np.uint32),
        ("stream", np.uint32),
        ("correlation", np.uint32),
        ("graph", np.uint32),
        ("name", np.uint64),
        ("bytes", np.uint64),
        ("value", np.uint32),
        ("from_device", np.uint32),
        ("to_device", np.uint32),
    ],
    align=True,
)
"""One activity of the GPU, or a synchronisation; times on CUPTI's clock. `name`: address of a kernel's
name. `bytes`: of a copy or memset. `value`: a memset's; a synchronisation's type; of a copy, its kind and
those of the memories at its ends, a byte each. A field is 0 if the kind lacks it. In a peer copy `device`
is its stream's, and the last two are its ends; in other kinds all three are equal."""

Activities: TypeAlias = NDArray[np.void]  # Shape (n,), dtype ACTIVITY

_OF_COPY = {"bytes": 8, "start_ns": 16, "end_ns": 24, "device": 32, "stream": 40}
# Field of ACTIVITY -> its offset in the record, with the same width.
_OFFSETS: dict[int, dict[str, int]] = {
    CONCURRENT_KERNEL: {
        "start_ns": 16,
        "end_ns": 24,
        "device": 40,
        "stream": 48,
        "correlation": 92,
        "name": 104,
        "graph": 156,
    },
    MEMCPY: _OF_COPY | {"value": 4, "correlation": 44, "graph": 72},
    MEMSET: _OF_COPY | {"value": 4, "correlation": 44, "graph": 72},
    PEER_MEMCPY: _OF_COPY | {"from_device": 44, "to_device": 52, "correlation": 60, "graph": 80},
    SYNCHRONIZATION: {"value": 4, "start_ns": 8, "end_ns": 16, "correlation": 24, "stream": 32},
}
_WHOLE = np.dtype((np.void, ACTIVITY.itemsize))
"""An activity as plain bytes: numpy copies these ten times as fast as structs."""


class UnknownRecordError(RuntimeError):
    """A record of a kind that was not requested: another tool uses CUPTI in this process."""


def sizes_for(version: int) -> Sizes:
    """Return the record sizes of this CUPTI_API_VERSION. Raises RuntimeError if it is unknown."""
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise RuntimeError(f"the records of CUPTI {version} are not known")
    at = bisect_right(_SIZES, version, key=lambda entry: entry[0]) - 1
    _, kernel, memcpy, memset, synchronization = _SIZES[at]
    return {
        CONCURRENT_KERNEL: kernel,
        MEMCPY: memcpy,
        MEMSET: memset,
        PEER_MEMCPY: _PEER_MEMCPY_BYTES,
        SYNCHRONIZATION: synchronization,
    }


def chosen(activities: Activities, mask: NDArray[np.bool_]) -> Activities:
    """Return a copy of the activities whose mask, shape (n,), is set."""
    return activities.view(_WHOLE)[mask].view(ACTIVITY)


def blocking_copies(activities: Activities) -> Activities:
    """Return the copies to pageable memory: the CPU is blocked until they end."""
    copies = chosen(activities, activities["kind"] == MEMCPY)
    kind, _, memory = (copies["value"] >> shift & 0xFF for shift in (0, 8, 16))
    return chosen(copies, (kind == _COPY_KIND_TO_HOST) & (memory == _PAGEABLE))


def read(buffer: bytes, sizes: Sizes) -> Activities:
    """Return the records in one or more of CUPTI's buffers, concatenated. Raises UnknownRecordError for a
    record of another kind, whose size is unknown.
    """
    starts = np.array(_starts(buffer, sizes), dtype=np.int64)
    words = np.frombuffer(buffer, dtype="<u4")
    long_words = np.frombuffer(buffer, dtype="<u8")
    kinds = words[starts]
    activities = np.zeros(len(starts), dtype=ACTIVITY)
    at = 0
    for kind in KINDS:
        records = starts[kinds == kind]
        if not len(records):
            continue
        rows = activities[at : at + len(records)]
        at += len(records)
        rows["kind"] = kind
        long_records = records // 2
        for field, offset in _OFFSETS[kind].items():
            if ACTIVITY[field].itemsize == 4:
                rows[field] = words[records + offset // 4]
            else:
                rows[field] = long_words[long_records + offset // 8]
        if kind != PEER_MEMCPY:
            rows["from_device"] = rows["to_device"] = rows["device"]
        if kind == MEMCPY:
            rows["kind"][rows["value"] & 0xFF == _COPY_KIND_PEER] = PEER_MEMCPY
    return activities


def _starts(buffer: bytes, sizes: Sizes) -> list[int]:
    """Return the starts of records in words of 4 bytes. Their sizes differ, so one by one: 0.05 us each."""
    words = memoryview(buffer).cast("B").cast("I")
    size_words = {kind: size // 4 for kind, size in sizes.items()}
    starts: list[int] = []
    at, end = 0, len(words)
    try:
        while at < end:
            starts.append(at)
            at += size_words[words[at]]
    except KeyError as kind:
        raise UnknownRecordError(
            f"CUPTI delivered records of kind {kind}, which this agent never asks for"
        ) from None
    if at > end:
        raise UnknownRecordError("CUPTI delivered a record that is cut off")
    return starts
