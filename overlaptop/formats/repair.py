"""Traces with events whose text is no JSON: names of Python functions, and arguments, as torch wrote them.

Kineto writes names as they are: with bytes that are not UTF-8, control characters, backslashes and quotes,
and ``inf`` or ``N/A`` as numbers (pytorch/pytorch#121219, #98432, pytorch/kineto#105, #1459). Nearly
always it is an event of Python's stack, which nothing here looks at. Only traces that could not be read as
they are come here: each event is looked at by itself, mended or left out.
"""

from __future__ import annotations

import re

import msgspec

from overlaptop.formats.chrome import Event, Text
from overlaptop.text import plural

MOST_LEFT_OUT = 0.1
"""A share of all events; with more the file is no trace with a few broken names."""
_BEGIN = re.compile(rb'\{\s*"ph"\s*:')
"""How each event begins, in all versions of Kineto."""
_CONTROL = dict.fromkeys((*range(32), 127), " ")
"""Whitespace between values stays whitespace."""
_COUNTS = re.compile(rb'"cat"\s*:\s*"(?:[Kk]ernel|Mem\w+|Runtime|(?:gpu|cuda|xpu|mtia|hpu|user)_\w+)"')
"""Categories without which figures would be wrong."""
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NO_NUMBER = re.compile(r"(:\s*)(?:[-+]?(?:inf|infinity|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)
_EVENT = msgspec.json.Decoder(Event)


def repaired(text: Text) -> tuple[bytes, str] | None:
    """Return the text with its broken events mended or left out, and what to say of it; None where that is
    not all that is wrong with it, or an event that counts cannot be mended.
    """
    begins = [match.start() for match in _BEGIN.finditer(text)]
    if not begins:
        return None
    kept, left_out_at = [], []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        event, rest = (text[begin:end], b"") if end < len(text) else _without_tail(text[begin:])
        sound = _mended(bytes(event).strip().removesuffix(b",").rstrip())
        if sound is None:
            if _COUNTS.search(event):
                return None
            left_out_at.append(begin)
        else:
            kept.append(sound)
    if len(left_out_at) > max(1, MOST_LEFT_OUT * len(begins)):
        return None
    head = bytes(text[: begins[0]]).decode(errors="replace").encode()
    said = ""
    if left_out_at:
        said = (
            f"{plural(len(left_out_at), 'event')} with broken text left out, the first at byte "
            f"{left_out_at[0]:,}: profile with with_stack=False"
        )
    return head + b",".join(kept) + rest, said


def _without_tail(text: Text) -> tuple[Text, bytes]:
    """The last event, and what follows the list of events. Strings may hold brackets: the last `}` before
    a bracket after which all is sound JSON ends the event.
    """
    at = -1
    while (at := text.find(b"]", at + 1)) >= 0:
        tail = bytes(text[at:])
        try:
            msgspec.json.decode(b"[" + tail if tail[1:].strip() == b"" else b'{"":[' + tail)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return text[:at], tail
    return text, b""


def _mended(event: bytes) -> bytes | None:
    """One event that can be read; None where it cannot."""
    try:
        _EVENT.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    else:
        return event
    text = event.decode(errors="replace").translate(_CONTROL)
    text = _NO_NUMBER.sub(r"\1null", _LONE_BACKSLASH.sub(r"\\\\", text))
    try:
        _EVENT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return text.encode()
