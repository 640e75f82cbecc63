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

from overlaptop.wire import commands
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
    PHASES,
    REPORT_STATES,
    SOURCES,
    Argument,
    CollectiveSpan,
    Command,
    CommandReport,
    HubStatus,
    Join,
    Message,
    Notice,
    PhaseSpan,
    RankEnd,
    RankInfo,
    StepDetail,
    StepTotals,
    TurnedAway,
    Watch,
    Welcome,
)

MAX_FRAME_BYTES = 1 << 20
MAX_TEXT_CHARS = 4096
MAX_PHASES = 1024
MAX_COLLECTIVES = 4096
MAX_ARGUMENTS = 8
MAX_PARTS = 256
"""Nodes, adapters, GPUs or links of one machine."""
MAX_WORDS = 32
MAX_KNOBS = 64
MAX_CHOICES = 256
MAX_GRADIENTS = 8192
MAX_SPAN_NUMBERS = 8192
"""Of one lane of one StepDetail: half as many spans."""
MAX_RANK = 1 << 20
"""Bounds rank numbers and world sizes, so that nobody makes a dashboard draw 2**63 rows."""

NOTICE_LEVELS = ("info", "warning", "error")

_HEADER_BYTES = 4


class WireError(Exception):
    """What a peer sent, or what was to be sent, is not a message."""


# Checks: each takes a value, returns it as it goes on, or raises WireError.

_Check = Callable[[Any], Any]


def _int64(value: Any) -> int:
    # `type is`, since True is an int to isinstance and a numpy integer is none to msgpack.
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    raise WireError(f"expected an integer of 64 bits, not {_brief(value)}")


def _int64_or_none(value: Any) -> int | None:
    return None if value is None else _int64(value)


def _share_or_none(value: Any) -> float | None:
    if value is None or (type(value) is float and 0.0 <= value <= 1.0):
        return value
    raise WireError(f"expected a share from 0.0 to 1.0, not {_brief(value)}")


def _rank(value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_RANK:
        return value
    raise WireError(f"expected an integer from 0 to {MAX_RANK}, not {_brief(value)}")


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise WireError(f"expected an integer of 63 bits, not {_brief(value)}")


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise WireError(f"expected true or false, not {_brief(value)}")


def _text(value: Any) -> str:
    if type(value) is str and len(value) <= MAX_TEXT_CHARS:
        return value
    raise WireError(f"expected text of at most {MAX_TEXT_CHARS} characters, not {_brief(value)}")


def _clipped(value: Any) -> str:
    """Outgoing text: a long reason is better cut short than a reason not to speak."""
    if type(value) is str and len(value) > MAX_TEXT_CHARS:
        value = value[: MAX_TEXT_CHARS - 1] + "…"
    return _text(value)


def _one_of(choices: tuple[str, ...]) -> _Check:
    def check(value: Any) -> str:
        if type(value) is str and value in choices:
            return value
        raise WireError(f"expected one of {', '.join(choices)}, not {_brief(value)}")

    return check


def _many(item: _Check, limit: int) -> _Check:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= limit:
            return tuple(map(item, value))
        raise WireError(f"expected a list of at most {limit}, not {_brief(value)}")

    return check


def _words_or_none(item: _Check) -> _Check:
    words = _many(item, MAX_WORDS)
    return lambda value: None if value is None else words(value)


_numbers = _many(_int64, MAX_SPAN_NUMBERS)


def _spans(value: Any) -> tuple[int, ...]:
    numbers: tuple[int, ...] = _numbers(value)
    if len(numbers) % 2:
        raise WireError("expected pairs of start and end, not an odd number of numbers")
    return numbers


def _brief(value: Any) -> str:
    """A value for an error's text, in few characters whatever it is.

    Only numbers are printed: the repr of a tensor that got here by mistake would wait for its device.
    """
    if type(value) is float or (type(value) is int and value.bit_length() <= 64):
        return f"{type(value).__name__} {value}"
    if isinstance(value, str | bytes | tuple | list | dict):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one dataclass looks as a row of plain values."""

    cls: type
    names: tuple[str, ...]
    outgoing: tuple[_Check, ...]
    incoming: tuple[_Check, ...]
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
            raise WireError(f"{self.cls.__name__}: expected {self.required} fields, not {_brief(row)}")
        instance = self.cls(*self._checked(self.incoming, row))
        self._check_whole(instance)
        return instance

    def _check_whole(self, instance: object) -> None:
        if self.fault is not None and (why := self.fault(instance)):
            raise WireError(f"{self.cls.__name__}: {why}")

    def to_tuple(self, instance: object) -> list[Any]:
        """As to_row, of an instance inside another message, whose type nobody has checked."""
        if type(instance) is not self.cls:
            raise WireError(f"expected {self.cls.__name__}, not {_brief(instance)}")
        return self.to_row(instance)

    def _checked(self, checks: tuple[_Check, ...], values: Iterable[Any]) -> list[Any]:
        checked: list[Any] = []
        try:
            # Not strict: fields after those known here are a newer peer's.
            for check, value in zip(checks, values, strict=False):
                checked.append(check(value))
        except WireError as error:
            raise WireError(f"{self.cls.__name__}.{self.names[len(checked)]}: {error}") from None
        return checked


_TYPES: dict[str, tuple[_Check, _Check]] = {
    "int": (_int64, _int64),
    "int | None": (_int64_or_none, _int64_or_none),
    "bool": (_bool, _bool),
    "str": (_clipped, _text),
    "float | None": (_share_or_none, _share_or_none),  # nothing but shares travels as a float
    "tuple[int, ...]": (_spans, _spans),
    "tuple[str, ...] | None": (_words_or_none(_clipped), _words_or_none(_text)),
}
"""Annotation in messages.py and devices.py -> check on the way out, check on the way in."""


def _both(check: _Check) -> tuple[_Check, _Check]:
    return check, check


_SPECIAL: dict[str, tuple[_Check, _Check]] = {
    "RankInfo.source": _both(_one_of(SOURCES)),
    "PhaseSpan.name": _both(_one_of(PHASES)),
    "Notice.level": _both(_one_of(NOTICE_LEVELS)),
    "CommandReport.state": _both(_one_of(REPORT_STATES)),
    "Knob.choices": _both(_many(_int64, MAX_CHOICES)),
    "GradientFacts.size_bytes": _both(_many(_count, MAX_GRADIENTS)),
    "GpuLink.kind": _both(_one_of(LINK_KINDS)),
    "NumaFacts.state": _both(_one_of(NUMA_STATES)),
    "Join.detail_ranks": _both(_many(_rank, MAX_COLLECTIVES)),
    "RankInfo.world_size": _both(_rank),
    "Welcome.world_size": _both(_rank),
    "GradientFacts.world_size": _both(_rank),
}


_WHOLE: dict[type, Callable[[Any], str]] = {
    Command: commands.fault,
    Knob: commands.knob_fault,
    Search: commands.search_fault,
}
"""Message -> what is wrong with it though each field is right by itself."""


def _shape(cls: type) -> _Shape:
    pairs = []
    for field in fields(cls):
        pair = _SPECIAL.get(f"{cls.__name__}.{field.name}")
        if pair is None and field.name in ("rank", "local_rank"):
            pair = _both(_rank)
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
    (Unknown, MAX_WORDS),
    (NumaNode, MAX_PARTS),
    (Nic, MAX_PARTS),
    (GpuSite, MAX_PARTS),
    (GpuLink, MAX_PARTS),
    (NodeShare, MAX_PARTS),
    (Knob, MAX_KNOBS),
):
    _inner = _shape(_cls)
    _TYPES[f"tuple[{_cls.__name__}, ...]"] = (
        _many(_inner.to_tuple, _limit),
        _many(_inner.from_row, _limit),
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
        raise WireError(f"expected an array that begins with a tag, not {_brief(row)}")
    shape = _BY_TAG.get(row[0])
    if shape is None:
        raise WireError(f"unknown message type {_brief(row[0])}")
    message: Message = shape.from_row(row[1:])
    return message


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
