"""Runs that are compared with one another: in what order they are made, and how sure what they show is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

RESAMPLINGS = 2000


def in_turn(ways: Sequence[T], rounds: int) -> Iterator[tuple[T, ...]]:
    """The ways of each round, in an order that rotates: so a drift of the machine does not count."""
    for number in range(rounds):
        first = number % len(ways)
        yield (*ways[first:], *ways[:first])


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Of each round."""
    return [one / other for one, other in zip(of, to, strict=True)]


def interval(
    values: Sequence[float], middle: Callable[[Sequence[float]], float] = statistics.median
) -> tuple[float, float]:
    """The 95 % interval of their middle, by resampling."""
    chance = random.Random(0)
    middles = sorted(middle(chance.choices(values, k=len(values))) for _ in range(RESAMPLINGS))
    cut = RESAMPLINGS // 40
    return middles[cut], middles[-cut - 1]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median and the range; a dash where there are none."""
    if not values:
        return "–"
    middle, least, most = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({least} .. {most})"
