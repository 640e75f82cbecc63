"""Lists of CPUs and of NUMA nodes as the kernel writes them: ``0-31,64-95``."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NUMBER = 1 << 16
"""Far above the kernel's own limits: 8,192 CPUs, 1,024 nodes."""


def parse_list(text: str) -> frozenset[int]:
    """Read ``0-31,64``; the empty text is the empty set. Raises ValueError on anything else."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not (_is_number(first) and (_is_number(last) if dash else True)):
            raise ValueError(f"{part[:40]!r} is no range of numbers")
        low, high = int(first), int(last if dash else first)
        if not low <= high < MAX_NUMBER:
            raise ValueError(f"{part[:40]!r} is no range below {MAX_NUMBER}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def format_list(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does: ascending, in ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
