"""The JSON of a Chrome trace as torch.profiler (Kineto) writes it: the few fields that count.

Everything else is skipped unread, and a field of another type is an error, so nothing that a trace holds
gets further than these classes. msgspec does it in an eighth of the time of the standard library's json.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

import msgspec

from overlaptop.formats.files import NoTraceOfARankError, TraceError

MAX_OBJECTS = 16_000_000
"""Objects in one trace: each event of a few bytes of text takes some 100 bytes of memory."""
MAX_NAME = 16_384
"""Characters of a name that are looked at; real ones, with all their template arguments, are shorter."""
_SMALL_BYTES = 1 << 25
"""Texts that are too short to hold that many."""
_CONTROL = dict.fromkeys((*range(32), 127), " ")
_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NO_NUMBER = re.compile(r"([:\[,]\s*)(?:[-+]?(?:inf|infinity|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)


class BrokenTextError(TraceError):
    """Some of a trace's text is no JSON; it may be `mended`."""


Text: TypeAlias = bytes | bytearray
Scalar: TypeAlias = int | float | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """What torch.profiler adds to an event. Any of it may be missing.

    Fields stand in the order in which torch.profiler writes them: msgspec finds them faster.
    """

    device: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None
    """The same number in a launch on the CPU and in what it launched on the GPU."""
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    in_elements: Scalar = msgspec.field(default=None, name="In msg nelems")
    out_elements: Scalar = msgspec.field(default=None, name="Out msg nelems")
    group_size: Scalar = msgspec.field(default=None, name="Group size")
    dtype: Scalar = None
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    group_description: Scalar = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Scalar | list[Scalar] = msgspec.field(default=None, name="Process Group Ranks")
    """As text, ``[0, 1, 2, 3]``; of more than 30 ranks the first 29, an ellipsis and the last."""
    source: Scalar = msgspec.field(default=None, name="Src Rank")
    target: Scalar = msgspec.field(default=None, name="Dst Rank")
    sequence: Scalar = msgspec.field(default=None, name="Seq")
    sycl_queue: Scalar = msgspec.field(default=None, name="sycl queue")
    """What Intel's XPU has in place of a stream."""
    graph: Scalar = msgspec.field(default=None, name="graph id")
    """Of a kernel that a CUDA graph launched; 0 of others, if anything."""


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False, frozen=True):
    """One event; times in microseconds since the trace's base time."""

    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    """Only events with a duration matter: the others are instants, flows and names of threads."""
    pid: Scalar = None
    """Of what ran on a GPU its number, in merged traces with the process's."""
    args: Args | None = None


class Device(msgspec.Struct, gc=False, frozen=True):
    """One GPU of the machine."""

    id: int | None = None
    name: str | None = None


class Distributed(msgspec.Struct, gc=False, frozen=True):
    """The rank that wrote the trace."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    nccl_version: Scalar = None


class Trace(msgspec.Struct, gc=False, frozen=True):
    """The whole file."""

    events: list[Event] = msgspec.field(name="traceEvents")
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[Device] | None = msgspec.field(default=None, name="deviceProperties")


class _OnThread(msgspec.Struct, gc=False, frozen=True):
    thread: Scalar = msgspec.field(default=None, name="tid")


class _Threads(msgspec.Struct, gc=False, frozen=True):
    events: list[_OnThread] = msgspec.field(name="traceEvents")


_TRACE = msgspec.json.Decoder(Trace)
_THREADS = msgspec.json.Decoder(_Threads)


def decode(path: Path, text: Text) -> Trace:
    """Return the trace that `text` is; `path` only names it in errors.

    Raises:
        BrokenTextError: some of it is not JSON.
        TraceError: cut off, nested too deeply, or not what torch.profiler writes.
    """
    if len(text) > _SMALL_BYTES and text.count(b"{") > MAX_OBJECTS:
        raise TraceError(path, f"more than {MAX_OBJECTS:,} objects: trace fewer steps")
    try:
        return _TRACE.decode(text)
    except RecursionError as fault:
        raise TraceError(path, "not a torch.profiler trace: nested too deeply") from fault
    except msgspec.ValidationError as fault:
        kind = NoTraceOfARankError if "missing required field" in str(fault) else TraceError
        raise kind(path, f"not a torch.profiler trace: {fault}") from fault
    except msgspec.DecodeError as fault:
        if "truncated" in str(fault):
            raise TraceError(path, "cut off: it ends in the middle of the JSON") from fault
        raise BrokenTextError(path, f"not JSON: {fault}; profile with with_stack=False") from fault
    except UnicodeDecodeError as fault:
        raise BrokenTextError(path, "not JSON: some of its text is not UTF-8") from fault


def mended(text: Text) -> bytes:
    """Return a text as Kineto writes it, made JSON: it leaves bytes that are not UTF-8, control characters
    and backslashes as they are, and has ``inf`` or ``N/A`` as numbers (pytorch/pytorch#121219, #98432,
    pytorch/kineto#105, #1459). Nobody can tell which quotes belong to a name.
    """
    sound = text.decode(errors="replace").translate(_CONTROL)
    sound = _BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", sound)
    return _NO_NUMBER.sub(r"\1null", sound).encode()


def decode_threads(path: Path, text: Text) -> list[Scalar]:
    """Return the thread of each event of a text that `decode` has taken. TraceError as from there."""
    try:
        return [event.thread for event in _THREADS.decode(text).events]
    except msgspec.ValidationError as fault:
        raise TraceError(path, f"not a torch.profiler trace: {fault}") from fault
