"""Messages to msgpack and back, and frames for byte streams. Nothing unchecked gets in.

On the wire a message is one array: its tag, then its fields in the order of messages.py. New fields go
to the end and have a default, so either side may be the newer one: what an older peer does not know it
ignores, what it does not send takes its default. Anything else needs a new PROTOCOL_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any

import msgpack

from overlaptop.wire import checks, commands, messages, relaying
from overlaptop.wire.bounds import BOUNDS
from overlaptop.wire.checks import MAX_RANK as MAX_RANK
from overlaptop.wire.checks import MAX_SPAN_NUMBERS, MAX_WORDS, Check
from overlaptop.wire.checks import WireError as WireError
from overlaptop.wire.devices import (
    LINK_KINDS,
    NUMA_STATES,
    DeviceFacts,
    DeviceSample,
    GpuLink,
    GpuSite,
    MachineFacts,
    Nic,
    NodeShare,
    NumaFacts,
    NumaNode,
    Unknown,
)
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts, Search
from overlaptop.wire.messages import (
    LOST,
    OUTCOME_STATES,
    PHASES,
    REPORT_STATES,
    SOURCES,
    Argument,
    CollectiveSpan,
    Command,
    CommandOutcome,
    CommandReport,
    HubStatus,
    Join,
    Message,
    Notice,
    PhaseSpan,
    RankEnd,
    RankInfo,
    RankOutcome,
    StepDetail,
    StepTotals,
    TurnedAway,
    Watch,
    Welcome,
)

MAX_FRAME_BYTES = 1 << 20
MAX_PHASES = 1024
MAX_COLLECTIVES = 4096
MAX_ARGUMENTS = 8
MAX_RANK_OUTCOMES = 4096
MAX_PARTS = 256
"""Nodes, adapters, GPUs or links of one machine."""
MAX_KNOBS = 64
MAX_CHOICES = 256
MAX_GRADIENTS = 8192

NOTICE_LEVELS = ("info", "warning", "error")

_HEADER_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one dataclass looks as a row of plain values."""

    cls: type
    names: tuple[str, ...]
    outgoing: tuple[Check, ...]
    incoming: tuple[Check, ...]
    required: int
    """Fields that must be there; those after them have defaults."""
    fault: Callable[[Any], str] | None = None
    """What is wrong with fields that are each right by themselves; empty: nothing."""

    def to_row(self, instance: object) -> list[Any]:
        row = self._checked(self.outgoing, [getattr(instance, name) for name in self.names])
        self._check_whole(instance)
        return row

    def from_row(self, row: Any) -> Any:
        if type(row) is not tuple or len(row) < self.required:
            raise WireError(
                f"{self.cls.__name__}: expected {self.required} fields, not {checks.brief(row)}"
            )
        instance = self.cls(*self._checked(self.incoming, row))
        self._check_whole(instance)
        return instance

    def _check_whole(self, instance: object) -> None:
        if self.fault is not None and (why := self.fault(instance)):
            raise WireError(f"{self.cls.__name__}: {why}")

    def to_tuple(self, instance: object) -> list[Any]:
        """As to_row, of an instance inside another message, whose type nobody has checked."""
        if type(instance) is not self.cls:
            raise WireError(f"expected {self.cls.__name__}, not {checks.brief(instance)}")
        return self.to_row(instance)

    def _checked(self, wanted: tuple[Check, ...], values: Iterable[Any]) -> list[Any]:
        checked: list[Any] = []
        try:
            # Not strict: fields after those known here are a newer peer's.
            for check, value in zip(wanted, values, strict=False):
                checked.append(check(value))
        except WireError as error:
            raise WireError(f"{self.cls.__name__}.{self.names[len(checked)]}: {error}") from None
        return checked


_TYPES: dict[str, tuple[Check, Check]] = {
    "int": (checks.int64, checks.int64),
    "int | None": (checks.or_none(checks.int64), checks.or_none(checks.int64)),
    "bool": (checks.boolean, checks.boolean),
    "str": (checks.clipped, checks.text),
    "float | None": (checks.share_or_none, checks.share_or_none),  # nothing but shares travels as a float
    "tuple[int, ...]": (checks.spans, checks.spans),
    "tuple[str, ...] | None": (checks.words_or_none(checks.clipped), checks.words_or_none(checks.text)),
}
"""Annotation in messages.py and devices.py -> check on the way out, check on the way in."""


def _both(check: Check) -> tuple[Check, Check]:
    return check, check


for _name, (_least, _most) in BOUNDS.items():
    _number = checks.whole(_least, _most)
    _TYPES |= {_name: _both(_number), f"{_name} | None": _both(checks.or_none(_number))}

_SPECIAL: dict[str, tuple[Check, Check]] = {
    "RankInfo.source": _both(checks.one_of(SOURCES)),
    "PhaseSpan.name": _both(checks.one_of(PHASES)),
    "Notice.level": _both(checks.one_of(NOTICE_LEVELS)),
    "CommandReport.state": _both(checks.one_of(REPORT_STATES)),
    "CommandOutcome.state": _both(checks.one_of(OUTCOME_STATES)),
    "RankOutcome.reported": _both(checks.one_of(OUTCOME_STATES)),
    "RankOutcome.state": _both(checks.one_of(OUTCOME_STATES)),
    "RankOutcome.lost": _both(checks.one_of(LOST)),
    "Knob.choices": _both(checks.many(checks.int64, MAX_CHOICES)),
    "GradientFacts.size_bytes": _both(checks.many(checks.whole(*BOUNDS["Count"]), MAX_GRADIENTS)),
    "GpuLink.kind": _both(checks.one_of(LINK_KINDS)),
    "NumaFacts.state": _both(checks.one_of(NUMA_STATES)),
    "HubStatus.silent_ranks": _both(checks.many(checks.rank, MAX_COLLECTIVES)),
    "Join.detail_ranks": _both(checks.many(checks.rank, MAX_COLLECTIVES)),
    "RankInfo.world_size": _both(checks.rank),
    "Welcome.world_size": _both(checks.rank),
    "GradientFacts.world_size": _both(checks.rank),
    "RemoteJob.world_size": _both(checks.rank),
    "RemoteJob.rank_pids": _both(checks.many(checks.int64, relaying.MAX_RANK_PIDS)),
    "RelayLimit.hz": _both(checks.number_up_to(relaying.MAX_HZ)),
    "RelayLaunch.words": _both(checks.many(checks.text, relaying.MAX_LAUNCH_WORDS)),
    "RelayLaunchStatus.phase": _both(checks.one_of(relaying.LAUNCH_PHASES)),
    "RelayLaunchStatus.output": _both(
        checks.many(checks.text_up_to(relaying.MAX_OUTPUT_CHARS), relaying.MAX_OUTPUT_LINES)
    ),
}


_WHOLE: dict[type, Callable[[Any], str]] = {
    StepTotals: messages.step_fault,
    Command: commands.fault,
    Knob: commands.knob_fault,
    Search: commands.search_fault,
    relaying.RemoteJob: relaying.job_fault,
    relaying.RelaySelect: relaying.select_fault,
    relaying.RelayLimit: relaying.limit_fault,
    relaying.RelayLaunch: relaying.launch_fault,
}
"""Message -> what is wrong with it though each field is right by itself."""


def _shape(cls: type) -> _Shape:
    pairs = []
    for field in fields(cls):
        pair = _SPECIAL.get(f"{cls.__name__}.{field.name}")
        if pair is None and field.name in ("rank", "local_rank"):
            pair = _both(checks.rank)
        pairs.append(pair or _TYPES[str(field.type)])
    return _Shape(
        cls,
        tuple(field.name for field in fields(cls)),
        tuple(outgoing for outgoing, _ in pairs),
        tuple(incoming for _, incoming in pairs),
        sum(field.default is MISSING for field in fields(cls)),
        _WHOLE.get(cls),
    )


for _cls, _limit in (
    (PhaseSpan, MAX_PHASES),
    (CollectiveSpan, MAX_COLLECTIVES),
    (Argument, MAX_ARGUMENTS),
    (RankOutcome, MAX_RANK_OUTCOMES),
    (Unknown, MAX_WORDS),
    (NumaNode, MAX_PARTS),
    (Nic, MAX_PARTS),
    (GpuSite, MAX_PARTS),
    (GpuLink, MAX_PARTS),
    (NodeShare, MAX_PARTS),
    (Knob, MAX_KNOBS),
    (relaying.RemoteJob, relaying.MAX_JOBS),
):
    _inner = _shape(_cls)
    _TYPES[f"tuple[{_cls.__name__}, ...]"] = (
        checks.many(_inner.to_tuple, _limit),
        checks.many(_inner.from_row, _limit),
    )

# A tag keeps its meaning for ever: new messages take new numbers.
_BY_TAG: dict[int, _Shape] = {
    1: _shape(RankInfo),
    2: _shape(StepTotals),
    3: _shape(StepDetail),
    4: _shape(Notice),
    5: _shape(RankEnd),
    6: _shape(Watch),
    7: _shape(Join),
    8: _shape(Welcome),
    9: _shape(HubStatus),
    10: _shape(Command),
    11: _shape(CommandReport),
    12: _shape(MachineFacts),
    13: _shape(DeviceFacts),
    14: _shape(NumaFacts),
    15: _shape(DeviceSample),
    16: _shape(KnobFacts),
    17: _shape(GradientFacts),
    18: _shape(Search),
    19: _shape(TurnedAway),
    20: _shape(CommandOutcome),
    32: _shape(relaying.RelayHello),
    33: _shape(relaying.RelayJobs),
    34: _shape(relaying.RelaySelect),
    35: _shape(relaying.RelayLink),
    36: _shape(relaying.RelayPing),
    37: _shape(relaying.RelayPong),
    38: _shape(relaying.RelayLimit),
    39: _shape(relaying.RelayLaunch),
    40: _shape(relaying.RelayLaunchStatus),
}
_BY_CLASS: dict[type, tuple[int, _Shape]] = {shape.cls: (tag, shape) for tag, shape in _BY_TAG.items()}


def encode(message: Message) -> bytes:
    """One message as bytes that :func:`decode` accepts.

    Text that is too long is clipped and lone surrogates become ``?``; a field of a wrong type or out of
    bounds raises WireError, as does a message over MAX_FRAME_BYTES.
    """
    tag, shape = _BY_CLASS.get(type(message), (0, None))
    if shape is None:
        raise WireError(f"{type(message).__name__} is not a message")
    data: bytes = msgpack.packb((tag, *shape.to_row(message)), unicode_errors="replace")
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} of {len(data)} bytes is over {MAX_FRAME_BYTES}")
    return data


def decode(data: bytes) -> Message:
    """The message in these bytes. Raises WireError, and nothing else, for whatever is not one."""
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"{len(data)} bytes are over {MAX_FRAME_BYTES}")
    try:
        row = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=MAX_SPAN_NUMBERS,
            max_map_len=64,
            ext_hook=_no_extension,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not msgpack within bounds: {error}") from None
    if type(row) is not tuple or not row or type(row[0]) is not int:
        raise WireError(f"expected an array that begins with a tag, not {checks.brief(row)}")
    shape = _BY_TAG.get(row[0])
    if shape is None:
        raise WireError(f"unknown message type {checks.brief(row[0])}")
    message: Message = shape.from_row(row[1:])
    return message


def kind(payload: bytes) -> type | None:
    """The class of the message in these bytes by their tag alone; None where there is no such tag."""
    at = 3 if payload[:1] == b"\xdc" else 1
    shape = _BY_TAG.get(payload[at]) if len(payload) > at else None
    return None if shape is None else shape.cls


def peek(payload: bytes, count: int) -> list[Any]:
    """The first fields of a message that begins with numbers, unchecked; fewer where it ends early."""
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(payload[: 16 + 9 * count])
    values: list[Any] = []
    try:
        length = unpacker.read_array_header()
        unpacker.skip()
        while len(values) < min(count, length - 1):
            values.append(unpacker.unpack())
    except (ValueError, msgpack.UnpackException):
        pass  # it ends early, or is no message: whoever decodes it will say so
    return values


def _no_extension(code: int, _data: bytes) -> None:
    raise WireError(f"extension type {code} has no meaning here")


def frame(payload: bytes) -> bytes:
    """A payload with its length before it (4 bytes, big-endian), for a stream. WireError if too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes is over {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class FrameReader:
    """Cuts a stream into the payloads that :func:`frame` made, however the stream was split."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete, oldest first.

        Raises WireError on a length over MAX_FRAME_BYTES: where the next frame begins is then unknown,
        and the stream of no further use. Holds at most one incomplete frame.
        """
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        at = 0
        while len(buffer) - at >= _HEADER_BYTES:
            start = at + _HEADER_BYTES
            length = int.from_bytes(buffer[at:start], "big")
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")
            if len(buffer) < start + length:
                break
            payloads.append(bytes(buffer[start : start + length]))
            at = start + length
        del buffer[:at]
        return payloads
