"""A knob in words: its name, its value with a unit, its allowed values, its line of code. Pure."""

from overlaptop.text import with_unit
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

_SHORT_NAMES = {BUCKET_CAP_MB: "bucket"}


def short_name(name: str) -> str:
    """Return ``bucket`` for bucket_cap_mb, other names unchanged."""
    return _SHORT_NAMES.get(name, name)


def value_words(knob: Knob, value: int | None) -> str:
    """Return such as ``25 MiB`` or ``4``; None: the script's own value."""
    return with_unit(knob.original_text if value is None else str(value), knob.unit)


def present_words(knob: Knob) -> str:
    """Return the present value in words; ``unknown`` if not known."""
    return with_unit(knob.value_text, knob.unit)


def allowed_words(knob: Knob) -> str:
    """Return such as ``1 to 10000 MiB`` or ``1, 2 or 4``."""
    if not knob.choices:
        return with_unit(f"{knob.least} to {knob.most}", knob.unit)
    *first, last = map(str, knob.choices)
    return with_unit(f"{', '.join(first)} or {last}" if first else last, knob.unit)


def code_line(knob: Knob, value: int | None = None) -> str:
    """Return the Python line that makes a value permanent, default: the present one; empty: not known."""
    text = knob.value_text if value is None else str(value)
    return knob.code.replace("{value}", text) if text else ""
