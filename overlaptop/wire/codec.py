"""Converts messages to msgpack and back, and frames them for byte streams. Everything is checked."""

import functools
import operator
import re
from typing import Any

import msgspec

# Imported for their messages: only imported messages can be decoded.
from overlaptop.wire import commands, devices, joining, knobs, messages  # noqa: F401
from overlaptop.wire.bounds import MAX_TEXT_CHARS
from overlaptop.wire.schema import Message, Part

MAX_FRAME_BYTES = 1 << 20
MAX_BATCH_BYTES = 2 * MAX_FRAME_BYTES
"""Of a batch in one frame (joining.py): a message of the maximum size, and others before it."""
_HEADER_BYTES = 4
MESSAGES: dict[int, type[Message]] = {
    int(str(cls.__struct_config__.tag)): cls for cls in Message.__subclasses__()
}
"""Message classes by tag."""
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
    functools.reduce(operator.or_, MESSAGES.values())
)
_PLACE = re.compile(r" - at `\$(?:\[(\d+)\])?(.*)`$")


class WireError(Exception):
    """Received or outgoing data is not a valid message."""


def encode(message: Message) -> bytes:
    """Return a message as bytes that :func:`decode` accepts.

    Long text is cut, and lone surrogates become ``?``. Raises WireError for a field of a wrong type or out
    of bounds, and for a message over MAX_FRAME_BYTES.
    """
    if not isinstance(message, Message):
        raise WireError(f"{type(message).__name__} is not a message")
    try:
        return _packed(message)
    except WireError:
        return _packed(_with_clean_text(message))


def _packed(message: Message) -> bytes:
    try:
        data = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"{type(message).__name__}: {error}") from None
    decode(data)
    return data


def _with_clean_text(value: Any) -> Any:
    if type(value) is str:
        text = value.encode(errors="replace").decode()
        return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
    if isinstance(value, tuple):
        return tuple(map(_with_clean_text, value))
    if isinstance(value, Part):
        return type(value)(*map(_with_clean_text, msgspec.structs.astuple(value)))
    return value


def decode(data: bytes) -> Message:
    """Return the message in these bytes. Raises only WireError, for anything that is not a message."""
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"{len(data)} bytes are over {MAX_FRAME_BYTES}")
    try:
        message = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(_refusal(kind(data), str(error))) from None
    if why := message.inconsistency():
        raise WireError(f"{type(message).__name__}: {why}")
    return message


def _refusal(cls: type[Message] | None, error: str) -> str:
    """Return msgspec's error with the field's name in place of its index."""
    if cls is None:
        return f"not a message: {error}"
    place = _PLACE.search(error)
    if place is None or not place[1]:
        return f"{cls.__name__}: {error}"
    return f"{cls.__name__}.{cls.__struct_fields__[int(place[1]) - 1]}{place[2]}: {error[: place.start()]}"


def kind(payload: bytes) -> type[Message] | None:
    """Return the class of the message in these bytes from its tag alone. None if the tag is unknown."""
    at = 3 if payload[:1] == b"\xdc" else 1
    return MESSAGES.get(payload[at]) if len(payload) > at else None


def frame(payload: bytes) -> bytes:
    """Prefix a payload with its length (4 bytes, big-endian) for a stream. WireError if it is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes is over {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class FrameReader:
    """Split a stream into the payloads that :func:`frame` made, however the stream was chunked."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that these bytes complete, oldest first. Holds at most one incomplete frame.

        Raises WireError on a length over MAX_FRAME_BYTES: the stream is unusable then.
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
