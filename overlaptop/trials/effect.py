"""The effect of trials on the step's length: a difference with its interval. Pure.

Steps are not independent samples: slow moments last for several steps, machines drift, and occasionally a
step takes ten times as long. So single steps are never compared. Each trial is one *pair*: the mean of its
steps, and the mean of the same number of steps with the present value around it, half before and half
after. A steady drift cancels in each pair. If a trial has no effect, its pair's difference is as likely
negative as positive, for any distribution of steps, because both means are of equally many steps. The test
assumes nothing else:

- The difference is the median of the averages of any two pairs' differences (Hodges and Lehmann).
- Its interval holds all differences that a signed-rank permutation test does not reject (Wilcoxon).

Measuring until a difference is known means looking several times, and each look may err. So differences are
judged only at the numbers of pairs in `LOOKS`, each time with a third of the error.

On simulated machines with white, correlated and skewed noise, with drifts, jumps, and one step in 25 that
takes twice as long, 4 to 6 in 100 sequences of looks report a difference that does not exist
(tests/trials).

Rejected alternatives: Student's t (one slow moment hides a real difference), a block bootstrap (too narrow:
with 7 pairs, 12 to 17 in 100 intervals miss), means of all steps of each value (a jump of the machine
affects them in full).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

CONFIDENCE = 0.95
LOOKS = (7, 14, 28, 56)
"""Numbers of pairs at which a difference is judged. At the last one the trials end, known or not."""
_LOOKS_THAT_COUNT = 3  # Trials rarely reach the last look, and the errors of the four looks overlap
SAME = 0.01  # Smallest useful difference, as a share of the step
WAKING_NS, WAKING_SHARE = 300_000, 0.1
"""Possible cost of a delay beyond its length: the smaller of WAKING_NS and WAKING_SHARE of the delay. On
two H200, steps of a critical rank grew by 8.2 to 8.3 ms for a delay of 8 ms."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial: the mean step during it and around it, over equally many steps."""

    tried_ns: float
    present_ns: float
    delay_ns: int = 0  # Delay in each step of a delay's trial, as timed by the rank
    jitter_ns: float = 0.0  # Standard deviation of the steps around it


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference and its interval of CONFIDENCE."""

    centre: float
    low: float
    high: float  # `low` and `high` are infinite with fewer pairs than the first of LOOKS
    pairs: int
    absorbed: float = 0.0  # Part of ``high`` for the slope that jitter may hide
    woken: float = 0.0  # Part of ``low`` for the cost of a delay beyond its length

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def lies_within(self, reach: float) -> bool:
        """Whether the whole interval is within ``reach`` of 0."""
        return -reach <= self.low and self.high <= reach


def relative(pairs: Sequence[Pair]) -> Effect | None:
    """Return the difference as a share of the present step. None without a pair."""
    effect = _effect([math.log(pair.tried_ns / pair.present_ns) for pair in pairs])
    if effect is None:
        return None
    centre, low, high = map(math.expm1, (effect.centre, effect.low, effect.high))
    return Effect(centre, low, high, effect.pairs)


def difference(pairs: Sequence[Pair], tests: int = 1) -> Effect | None:
    """Return the difference in the pairs' unit, such as ns. None without a pair.

    The intervals of `tests` differences together miss a true difference as rarely as one with CONFIDENCE
    does.
    """
    return _effect([pair.tried_ns - pair.present_ns for pair in pairs], tests)


def slope(pairs: Sequence[Pair]) -> Effect | None:
    """Return the step's growth for each ns of delay: 1 on the critical path, 0 in slack.

    Ranks that wait for each other's jitter absorb that part of a delay, so the interval extends upwards by
    it. After a delay, CPU and GPU have to wake, so the interval extends downwards by that cost.
    """
    effect = _effect([(pair.tried_ns - pair.present_ns) / pair.delay_ns for pair in pairs])
    if effect is None:
        return None
    absorbed = median(pair.jitter_ns / pair.delay_ns for pair in pairs)
    woken = median(min(WAKING_NS / pair.delay_ns, WAKING_SHARE) for pair in pairs)
    low, high = effect.low - woken, effect.high + absorbed
    return Effect(effect.centre, low, high, effect.pairs, absorbed, woken)


def is_known(effect: Effect) -> bool:
    """Whether a relative difference is known: it exists, or is too small to be useful."""
    return effect.pairs in LOOKS and (effect.differs or effect.lies_within(SAME))


def _effect(differences: Sequence[float], tests: int = _LOOKS_THAT_COUNT) -> Effect | None:
    """Return the effect from the pairs' differences. None without any. `tests` share the error."""
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
    """Return how many of the smallest averages, and of the largest, the test rejects. 0 with too few pairs.

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
