"""What trials did to the step's length: a difference with its interval. Pure.

Steps are no independent draws: slow moments last for several steps, machines drift, and now and then a step
takes ten times as long. So single steps are never compared. Each trial is one *pair*: the mean of its steps
against the mean of as many steps of the present value around it, half before and half after. A steady drift
cancels in each pair. A trial that does nothing makes its pair's difference as likely negative as positive,
however the steps are distributed, because both means are of equally many steps. That is all that the test
assumes:

- The difference is the median of the averages of any two pairs' differences (Hodges and Lehmann).
- Its interval holds all differences that a signed-rank permutation test does not reject (Wilcoxon).

Whoever measures until a difference is known looks several times, and each look may err. Differences are
therefore judged at the numbers of pairs in `LOOKS` only, each time with a third of the error.

On simulated machines with white, correlated and skewed noise, with drifts, jumps, and a step in 25 that
takes twice as long, 4 to 6 in 100 sequences of looks call a difference that is none (tests/trials).

Turned down: Student's t (one slow moment hides a real difference), a block bootstrap (too narrow: with 7
pairs, 12 to 17 in 100 intervals miss), means of all steps of each value (a jump of the machine is in them
whole).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

CONFIDENCE = 0.95
LOOKS = (7, 14, 28, 56)
"""Pairs at which a difference is judged; at the last one the trials end, known or not."""
_LOOKS_THAT_COUNT = 3
"""Trials rarely go on to the last look, and what four looks find overlaps."""
SAME = 0.01
"""Share of the step: a smaller difference is none worth having."""
WAKING_NS, WAKING_SHARE = 300_000, 0.1
"""What a delay costs besides its length: the lesser of this and this share of it. Steps of a critical rank
grew by 8.2 to 8.3 ms for a delay of 8 ms, on two H200."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial: the mean step in it and around it, of equally many steps."""

    tried_ns: float
    present_ns: float
    delay_ns: int = 0
    """In each step of a delay's trial, as the rank timed it."""
    jitter_ns: float = 0.0
    """Standard deviation of the steps around it."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference and its interval of CONFIDENCE."""

    centre: float
    low: float
    high: float
    """Both infinite with fewer pairs than the first of LOOKS."""
    pairs: int
    absorbed: float = 0.0
    """Part of ``high``: what jitter may hide of a slope."""
    woken: float = 0.0
    """Part of ``low``: what a delay may cost besides its length."""

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def lies_within(self, reach: float) -> bool:
        """Whether all of the interval is within ``reach`` of 0."""
        return -reach <= self.low and self.high <= reach


def relative(pairs: Sequence[Pair]) -> Effect | None:
    """The difference as a share of the present step; None without a pair."""
    effect = _effect([math.log(pair.tried_ns / pair.present_ns) for pair in pairs])
    if effect is None:
        return None
    centre, low, high = map(math.expm1, (effect.centre, effect.low, effect.high))
    return Effect(centre, low, high, effect.pairs)


def difference(pairs: Sequence[Pair], tests: int = 1) -> Effect | None:
    """The difference in ns, or whatever the pairs are in; None without a pair. The intervals of so many
    `tests` together miss a true difference as rarely as one with CONFIDENCE does.
    """
    return _effect([pair.tried_ns - pair.present_ns for pair in pairs], tests)


def slope(pairs: Sequence[Pair]) -> Effect | None:
    """The step's growth for each ns of the delay that was tried: 1 on the critical path, 0 in slack.

    Ranks that wait for each other's jitter absorb as much of a delay, so the interval reaches up by that.
    After a delay CPU and GPU have to wake, so it reaches down by that.
    """
    effect = _effect([(pair.tried_ns - pair.present_ns) / pair.delay_ns for pair in pairs])
    if effect is None:
        return None
    absorbed = median(pair.jitter_ns / pair.delay_ns for pair in pairs)
    woken = median(min(WAKING_NS / pair.delay_ns, WAKING_SHARE) for pair in pairs)
    low, high = effect.low - woken, effect.high + absorbed
    return Effect(effect.centre, low, high, effect.pairs, absorbed, woken)


def is_known(effect: Effect) -> bool:
    """Whether a relative difference is: there is one, or none worth having."""
    return effect.pairs in LOOKS and (effect.differs or effect.lies_within(SAME))


def _effect(differences: Sequence[float], tests: int = _LOOKS_THAT_COUNT) -> Effect | None:
    """Of the differences of pairs, in their unit; None: there are none. `tests` share the error."""
    pairs = len(differences)
    if not pairs:
        return None
    first, second = np.triu_indices(pairs)
    values = np.asarray(differences, dtype=np.float64)
    averages = np.sort((values[first] + values[second]) / 2)
    centre, rejected = float(np.median(averages)), _rejected(pairs, tests)
    if not rejected:
        return Effect(centre, -math.inf, math.inf, pairs)
    return Effect(centre, float(averages[rejected - 1]), float(averages[-rejected]), pairs)


@lru_cache(maxsize=256)
def _rejected(pairs: int, tests: int) -> int:
    """How many of the smallest averages the test rejects, and of the largest; 0: too few pairs.

    From the exact distribution of the sum of ranks with a positive sign.
    """
    ways = np.ones(1)
    for rank in range(1, pairs + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways
        longer[rank:] += ways
        ways = longer
    error = (1 - CONFIDENCE) / tests / 2
    return int(np.searchsorted(np.cumsum(ways / ways.sum()), error, side="right"))
