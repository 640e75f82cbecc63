"""A knob's values for stepping and typing. Pure functions."""

from overlaptop.report.knobs import allowed_words
from overlaptop.wire.knobs import Knob

SCRIPT = "script"
"""Typed to return to the script's value."""
_SMALL_RANGE = 32
_LOWEST_VALUES = (1, 2, 5, 10, 25, 50, 100)
"""Larger values double."""


class ValueRefusedError(ValueError):
    """Not a value of this knob; the message is one line."""


def number(text: str) -> float | None:
    """Return a value as a number; None: it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def stepped(knob: Knob, at: float, direction: int) -> int | None:
    """Return the next value up (1) or down (-1) from ``at``; None at the end.

    Choices in their order; a small range one by one; else 1 2 5 10 25 50 100 200 400 800 ... within the
    bounds.
    """
    if knob.choices and at in knob.choices:
        index = knob.choices.index(int(at)) + direction
        return knob.choices[index] if 0 <= index < len(knob.choices) else None
    values = sorted(knob.choices) if knob.choices else _values(knob)
    beyond = [value for value in values if (value > at if direction > 0 else value < at)]
    return (min(beyond) if direction > 0 else max(beyond)) if beyond else None


def smallest(knob: Knob) -> int:
    """Return the first value for stepping from a value that is not a number."""
    return min(knob.choices) if knob.choices else knob.least


def parsed(knob: Knob, words: str) -> int | None:
    """Parse a typed value; None for the script's own. Raises ValueRefusedError."""
    typed = words.strip().lower().removesuffix(knob.unit.lower()).strip() if knob.unit else words.strip()
    if typed.lower() == SCRIPT:
        return None
    try:
        value = int(typed)
    except ValueError:
        raise ValueRefusedError(f"type a whole number, {allowed_words(knob)}; or: {SCRIPT}") from None
    if fault := knob.fault(value):
        raise ValueRefusedError(fault)
    return value


def _values(knob: Knob) -> list[int]:
    if knob.most - knob.least <= _SMALL_RANGE:
        return list(range(knob.least, knob.most + 1))
    values = list(_LOWEST_VALUES)
    while values[-1] < max(abs(knob.least), abs(knob.most)):
        values.append(2 * values[-1])
    both = {0, *values, *(-value for value in values)}
    return sorted(value for value in both if knob.least <= value <= knob.most)
