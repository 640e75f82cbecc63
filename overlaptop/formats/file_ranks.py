"""The ranks of traces that do not have them, by the names of their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_NUMBER = re.compile(r"\d+", re.ASCII)
_MANY = 4
"""Numbers are ranks, of which some may be missing, up to so many times the number of files; process ids are
higher."""


class FileRanks(NamedTuple):
    """A rank for each of n files."""

    ranks: tuple[int, ...]
    """Shape (n,)."""
    known: bool
    """Else each is only the file's place among the names."""


def ranks_of(names: Sequence[str]) -> FileRanks:
    """Take the number that differs from name to name for the rank: ``trace_10.json``, ``a-TP-3.json``.

    There may be several such numbers, as where the time is a part of the name: the ranks are the lowest.
    """
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    alike = len({_NUMBER.sub("#", name) for name in names}) == 1
    candidates = [of for of in zip(*numbers, strict=True) if len(set(of)) == len(names)] if alike else []
    believed = [of for of in candidates if max(of) < _MANY * len(names)]
    if believed and len(names) > 1:
        return FileRanks(min(believed, key=lambda of: (max(of), min(of))), known=True)
    order = sorted(range(len(names)), key=lambda at: (_natural(names[at]), at))
    return FileRanks(tuple(order.index(at) for at in range(len(names))), known=False)


def _natural(name: str) -> list[tuple[int, str]]:
    """What orders ``b9`` before ``b10``."""
    words = re.split(r"(\d+)", name)
    return [(int(word), "") if word.isdecimal() and word.isascii() else (-1, word) for word in words]
