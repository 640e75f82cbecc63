"""A knob's values as a person steps through them and types them. Pure functions."""

from __future__ import annotations

from overlaptop.report.knobs import allowed_words
from overlaptop.wire.knobs import Knob

SCRIPT = "script"
"""What is typed in place of a value to go back to the one that the script gave."""
_SMALL_RANGE = 32
_LOWEST_VALUES = (1, 2, 5, 10, 25, 50, 100)
"""From there on they double."""


class ValueRefusedError(ValueError):
    """What was typed is no value of this knob; says why in one line."""


def number(text: str) -> float | None:
    """A value as a number; None: it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def stepped(knob: Knob, at: float, direction: int) -> int | None:
    """The next value up (1) or down (-1) from ``at``; None at the end.

    Choices in their order; a small range one by one; else 1 2 5 10 25 50 100 200 400 800 ...
    within the bounds.
    """
    if knob.choices and at in knob.choices:
        index = knob.choices.index(int(at)) + direction
        return knob.choices[index] if 0 <= index < len(knob.choices) else None
    values = sorted(knob.choices) if knob.choices else _values(knob)
    beyond = [value for value in values if (value > at if direction > 0 else value < at)]
    return (min(beyond) if direction > 0 else max(beyond)) if beyond else None


def smallest(knob: Knob) -> int:
    """Where stepping begins from a value that is no number."""
    return min(knob.choices) if knob.choices else knob.least


def parsed(knob: Knob, words: str) -> int | None:
    """What was typed: a value of this knob, or None for the script's own. Raises ValueRefusedError."""
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
