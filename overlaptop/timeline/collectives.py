"""What all readers of collectives share: the sizes of their elements, the names of their groups."""

from __future__ import annotations

from collections.abc import Iterable

ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Int": 4, "Long": 8,
    "Half": 2, "BFloat16": 2, "Float": 4, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of one element, by c10's name of its type: so torch's flight recorder and its profiler call it."""


def group_title(name: object, description: object) -> str:
    """A process group's name, with its description where it has one."""
    described = description not in (None, "", "undefined")
    return f"{name} {description}" if described else str(name)


def sum_where_known(values: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
