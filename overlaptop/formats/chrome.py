"""The JSON of a Chrome trace as torch.profiler (Kineto) writes it: only the few fields that matter.

All other fields are skipped unread, and a field of another type is an error, so no unchecked data leaves
these classes. msgspec needs an eighth of the time of the standard library's json.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from overlaptop.formats.files import NoTraceOfARankError, TraceError

MAX_NAME = 16_384
"""Characters of a name that are read. Real names, with all template arguments, are shorter."""
_CONTROL = dict.fromkeys((*range(32), 127), " ")
_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NO_NUMBER = re.compile(r"([:\[,]\s*)(?:[-+]?(?:inf|infinity|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)


Text: TypeAlias = bytes | bytearray
Scalar: TypeAlias = int | float | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """torch.profiler's arguments of an event. Any of them may be missing.

    Fields are in torch.profiler's order, because msgspec then finds them faster.
    """

    device: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None  # The same number in a CPU launch and in the GPU activity it launched
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    in_elements: Scalar = msgspec.field(default=None, name="In msg nelems")
    out_elements: Scalar = msgspec.field(default=None, name="Out msg nelems")
    group_size: Scalar = msgspec.field(default=None, name="Group size")
    dtype: Scalar = None
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    group_description: Scalar = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Scalar | list[Scalar] = msgspec.field(default=None, name="Process Group Ranks")
    """As text, ``[0, 1, 2, 3]``. With more than 30 ranks: the first 29, an ellipsis and the last."""
    source: Scalar = msgspec.field(default=None, name="Src Rank")
    target: Scalar = msgspec.field(default=None, name="Dst Rank")
    sequence: Scalar = msgspec.field(default=None, name="Seq")
    sycl_queue: Scalar = msgspec.field(default=None, name="sycl queue")
    """Intel XPU's equivalent of a stream."""
    graph: Scalar = msgspec.field(default=None, name="graph id")
    """CUDA graph that launched the kernel. 0 or missing for other kernels."""


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False, frozen=True):
    """One event. Times are in microseconds since the trace's base time."""

    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    """Only events with a duration matter. The others are instants, flows and thread names."""
    pid: Scalar = None  # GPU number for GPU activity. In merged traces, the process's number is added.
    tid: Scalar = None
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


_TRACE = msgspec.json.Decoder(Trace)


def decode(path: Path, text: Text) -> Trace:
    """Return the trace in `text`, from a repaired text if necessary. `path` only names it in errors.

    Raises:
        TraceError: it is not JSON, cut off, nested too deeply, or not from torch.profiler.
    """
    try:
        return _TRACE.decode(text)
    except RecursionError as fault:
        raise TraceError(path, "not a torch.profiler trace: nested too deeply") from fault
    except msgspec.ValidationError as fault:
        kind = NoTraceOfARankError if "missing required field" in str(fault) else TraceError
        raise kind(path, f"not a torch.profiler trace: {fault}") from fault
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        if "truncated" in str(fault):
            raise TraceError(path, "cut off: it ends in the middle of the JSON") from fault
        with suppress(msgspec.DecodeError, RecursionError):
            return _TRACE.decode(_mended(text))
        why = str(fault) if isinstance(fault, msgspec.DecodeError) else "some of its text is not UTF-8"
        raise TraceError(path, f"not JSON: {why}; profile with with_stack=False") from fault


def _mended(text: Text) -> bytes:
    """Return the text with Kineto's JSON errors repaired. Kineto does not escape bytes that are not UTF-8,
    control characters and backslashes, and writes ``inf`` or ``N/A`` as numbers (pytorch/pytorch#121219,
    #98432, pytorch/kineto#105, #1459). Unescaped quotes in a name cannot be recognised.
    """
    sound = text.decode(errors="replace").translate(_CONTROL)
    sound = _BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", sound)
    return _NO_NUMBER.sub(r"\1null", sound).encode()
