"""Which values of a knob are worth a measurement, by what was measured and by what a model says. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from overlaptop.tuning.space import Space

Prior = Callable[[int], float | None]
"""The step that a model predicts for a value, ns; None: it does not know."""

LADDER = 7
"""Values to begin with, besides what the model leaves out."""
UNTRIED_MODEL = 0.25
TRIED_MODEL = 0.10
"""By what share the model must predict a value to be longer than its best one for it to be left out: until
three values were measured, and since. And by MISSES times what the model was wrong by."""
MISSES = 3.0
MISLEADING = 0.1
"""A model that is wrong by more about a measured value is not listened to."""
NEIGHBOUR_RATIO = 1.25
"""Values closer than this factor are not told apart."""
WIDE_RATIO = 2.0
"""Between a valley and a neighbour that differs by more than this factor a value is tried in any case."""
MOST_VALUES = LADDER + 8
"""Tried in all."""
LOOKS = 64
"""At so many values the model is asked what it likes best."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What is known of the values that were measured."""

    longer: Mapping[int, float]
    """By what share each one's step is longer than that of one of them; by rising value."""
    racing: frozenset[int]
    """Those that may be the best."""
    best: int


class Candidates:
    """The values of one search."""

    def __init__(
        self, space: Space, before: int, prior: Prior, indifference: float, ladder: int = LADDER
    ) -> None:
        """``indifference``: as in Plan. ``ladder``: so many values to begin with."""
        self._space, self._before, self._prior, self._indifference = space, before, prior, indifference
        self._ladder = space.ladder(ladder, before)

    def first(self) -> list[int]:
        """The value before, and then the others of the ladder that the model does not rule out."""
        rest = [value for value in self._ladder if value != self._before]
        return [self._before, *self.promising(_scattered(rest), {})]

    def promising(self, values: list[int], measured: Mapping[int, float]) -> list[int]:
        """Those of the values that the model does not rule out, what it likes best first.

        ``measured``: the steps of those that were measured, ns.
        """
        predicted = {value: self._prior(value) for value in (*self._ladder, *values)}
        known = {value: step_ns for value, step_ns in predicted.items() if step_ns is not None}
        misses = self._misses(measured)
        if len(known) < len(predicted) or (misses is not None and misses > MISLEADING):
            return values
        margin = UNTRIED_MODEL if misses is None else TRIED_MODEL + MISSES * misses
        longest_ns = min(known.values()) * (1 + margin)
        return sorted((value for value in values if known[value] <= longest_ns), key=lambda v: known[v])

    def more(self, curve: Curve, measured: Mapping[int, float]) -> list[int]:
        """Values that were not measured and should be, now that the curve is known as far as it is."""
        wanted = [*self._next_to(curve.best), *self.promising(self._ladder, measured)]
        wanted += self._predicted(curve.best, measured)
        for value in sorted(_valleys(curve), key=lambda value: curve.longer[value]):
            wanted += self._beside(value, curve)
        kept: list[int] = []
        for value in wanted:
            if len(curve.longer) + len(kept) >= MOST_VALUES:
                break
            if not any(self._alike(value, other) for other in (*curve.longer, *kept)):
                kept.append(value)
        return kept

    def _misses(self, measured: Mapping[int, float]) -> float | None:
        """By what share the model is wrong about the measured values, at most, when the share by which it
        is wrong about all of them is taken off: only the shape of the curve leads the search. None: with
        fewer than three that cannot be told.
        """
        ratios = [
            predicted_ns / step_ns
            for value, step_ns in measured.items()
            if (predicted_ns := self._prior(value)) is not None
        ]
        if len(ratios) < 3:
            return None
        usual = median(ratios)
        return max(abs(ratio / usual - 1) for ratio in ratios)

    def _alike(self, one: int, other: int) -> bool:
        """Whether two values are too alike to measure both."""
        if self._space.same(one, other):
            return True
        apart = abs(self._space.position(one) - self._space.position(other))
        return apart < math.log(NEIGHBOUR_RATIO) and abs(one - other) > 1

    def _next_to(self, best: int) -> list[int]:
        """The rungs of the ladder beside the best: the model may have left them out."""
        at = self._space.position(best)
        below = [value for value in self._ladder if self._space.position(value) < at]
        above = [value for value in self._ladder if self._space.position(value) > at]
        return [*below[-1:], *above[:1]]

    def _predicted(self, best: int, measured: Mapping[int, float]) -> list[int]:
        """What the model likes best, if it promises more than the best one does."""
        misses, here_ns = self._misses(measured), self._prior(best)
        if misses is None or misses > MISLEADING or here_ns is None:
            return []
        low, high = self._space.position(self._space.least), self._space.position(self._space.most)
        looks = {self._space.near(low + (high - low) * at / (LOOKS - 1)) for at in range(LOOKS)}
        found = {value: step_ns for value in looks if (step_ns := self._prior(value)) is not None}
        value = min(found, key=lambda each: (found[each], each), default=best)
        return [value] if found.get(value, here_ns) < here_ns * (1 - self._indifference / 2) else []

    def _beside(self, value: int, curve: Curve) -> list[int]:
        """Between a value and its neighbours: the middle, where they are far apart, and the lowest point of
        a parabola through the three, where that is lower.
        """
        values = list(curve.longer)
        at = values.index(value)
        around = values[max(0, at - 1) : at + 2]
        x = [self._space.position(each) for each in around]
        found = [
            self._space.near((left + right) / 2)
            for left, right in pairwise(x)
            if right - left > math.log(WIDE_RATIO)
        ]
        if len(around) == 3:
            promised = _lowest(x, [math.log1p(curve.longer[each]) for each in around])
            if promised is not None and promised[1] > self._indifference / 2:
                found.append(self._space.near(promised[0]))
        return found


def _valleys(curve: Curve) -> list[int]:
    """The values that may still be the best, and are shorter than both of their neighbours."""
    around = [math.inf, *curve.longer.values(), math.inf]
    return [
        value
        for at, value in enumerate(curve.longer)
        if (value in curve.racing or value == curve.best)
        and around[at + 1] <= min(around[at], around[at + 2])
    ]


def _lowest(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """Where a parabola through three points is lowest, and how far below the second; None: nowhere."""
    left, right = (y[0] - y[1]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (left + right) / (x[2] - x[0])
    if bend <= 0:
        return None
    slope = (right * (x[1] - x[0]) - left * (x[2] - x[1])) / (x[2] - x[0])
    return x[1] - slope / (2 * bend), slope * slope / (4 * bend)


def _scattered(values: list[int]) -> list[int]:
    """The same, such that neighbours are far apart: a drift does not look like a slope."""
    half = (len(values) + 1) // 2
    low, high = values[:half], values[half:]
    return [value for pair in zip(high, low, strict=False) for value in pair] + low[len(high) :]
