"""Checks of single values: each takes one, returns it as it goes on, or raises WireError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlaptop.wire.bounds import BOUNDS

MAX_TEXT_CHARS = 4096
MAX_WORDS = 32
MAX_SPAN_NUMBERS = 8192
"""Of one lane of one StepDetail: half as many spans."""
MAX_RANK = 1 << 20
"""Bounds rank numbers and world sizes, so that nobody makes a dashboard draw 2**63 rows."""


class WireError(Exception):
    """What a peer sent, or what was to be sent, is not a message."""


Check = Callable[[Any], Any]


def whole(least: int, most: int) -> Check:
    """The check of an integer; both ends belong to what is allowed."""

    def check(value: Any) -> int:
        # `type is`, since True is an int to isinstance and a numpy integer is none to msgpack.
        if type(value) is int and least <= value <= most:
            return value
        raise WireError(f"expected an integer from {least} to {most}, not {brief(value)}")

    return check


int64 = whole(-(1 << 63), (1 << 63) - 1)
"""What msgpack can carry."""


def or_none(check: Check) -> Check:
    """The same, or nothing known."""
    return lambda value: None if value is None else check(value)


def share_or_none(value: Any) -> float | None:
    """A fraction, or nothing known."""
    if value is None or (type(value) is float and 0.0 <= value <= 1.0):
        return value
    raise WireError(f"expected a share from 0.0 to 1.0, not {brief(value)}")


rank = whole(0, MAX_RANK)
"""The number of a rank, or how many there are."""


def boolean(value: Any) -> bool:
    """True or False, and no number."""
    if type(value) is bool:
        return value
    raise WireError(f"expected true or false, not {brief(value)}")


def text_up_to(most_chars: int) -> Check:
    """The check of a text of so many characters."""

    def check(value: Any) -> str:
        if type(value) is str and len(value) <= most_chars:
            return value
        raise WireError(f"expected text of at most {most_chars} characters, not {brief(value)}")

    return check


text = text_up_to(MAX_TEXT_CHARS)


def clipped(value: Any) -> str:
    """Outgoing text: a long reason is better cut short than a reason not to speak."""
    if type(value) is str and len(value) > MAX_TEXT_CHARS:
        value = value[: MAX_TEXT_CHARS - 1] + "…"
    checked: str = text(value)
    return checked


def number_up_to(most: float) -> Check:
    """The check of a finite float that is not negative."""

    def check(value: Any) -> float:
        if type(value) is float and 0.0 <= value <= most:
            return value
        raise WireError(f"expected a number from 0.0 to {most}, not {brief(value)}")

    return check


def one_of(choices: tuple[str, ...]) -> Check:
    """The check of a word of a closed list."""

    def check(value: Any) -> str:
        if type(value) is str and value in choices:
            return value
        raise WireError(f"expected one of {', '.join(choices)}, not {brief(value)}")

    return check


def many(item: Check, limit: int) -> Check:
    """The check of a list of so many items."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= limit:
            return tuple(map(item, value))
        raise WireError(f"expected a list of at most {limit}, not {brief(value)}")

    return check


def words_or_none(item: Check) -> Check:
    """The check of some texts, or of nothing known."""
    words = many(item, MAX_WORDS)
    return lambda value: None if value is None else words(value)


_span_numbers = many(whole(*BOUNDS["OffsetNs"]), MAX_SPAN_NUMBERS)


def spans(value: Any) -> tuple[int, ...]:
    """Starts and ends, one after the other."""
    numbers: tuple[int, ...] = _span_numbers(value)
    if len(numbers) % 2:
        raise WireError("expected pairs of start and end, not an odd number of numbers")
    return numbers


def brief(value: Any) -> str:
    """A value for an error's text, in few characters whatever it is.

    Only numbers are printed: the repr of a tensor that got here by mistake would wait for its device.
    """
    if type(value) is float or (type(value) is int and value.bit_length() <= 64):
        return f"{type(value).__name__} {value}"
    if isinstance(value, str | bytes | tuple | list | dict):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__
