"""What a change between two settings does to a figure, where the job may have gone back and again.

A figure moves by itself too: a machine warms up, its neighbours come and go. So each change is judged by
the steps next to it only: the mean of one window before it and of one after. What two neighbouring windows
of *one* setting are apart says how much the machine does in that time, jumps included. The test is by rank:

- Differences of neighbouring windows of one setting have a median, the drift: it is taken off all others.
- Where the job changed once, the change is real if its difference is larger than all of those, and there
  are `FEWEST_ONCE` or more: by chance it is the largest of so many in one case of 25 or less.
- Where the job went back, *each* change has to show it, the sign turned: by chance all do so more seldom,
  and a smaller difference is enough, even if a neighbour came just in one of them (`_level`).

On simulated machines that drift by 10 % a minute, or whose level jumps by a third every 200 to 300 steps or
once, at most 5 in 100 are called different that are not (tests/stats/test_alternation.py). A change by 5 %
is found in 96 of 100 after one alternation of 36 steps each, in 7 of 10 where the level jumps meanwhile.

Turned down: a walk from window to window (interleaved.py, by which a search measures many values): where
the level jumps it called up to 12 in 100 different. Means of all steps on both sides: a jump or a drift is
in them whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from overlaptop.stats.noise import FEWEST, ROUNDING, Difference, Floats, limit_of, winsorize

FEWEST_ONCE = 24
"""Differences of neighbouring windows that it takes where the job changed once."""
FEWEST_BACK = 8
"""And where it went back."""
FEWEST_BETWEEN = 2 * FEWEST
"""Steps between two changes, so that each has a window of its own."""
LONGER = 40
"""Windows are twice as long where there are so many even then."""
CHANCE = 0.03


def usable(lengths: Sequence[int]) -> int:
    """How many of the last of these stretches of steps, oldest first, can be judged together: all between
    two changes have two windows, and the first one has one, unless it is the last but one.
    """
    number = min(2, len(lengths))
    while number < len(lengths) and lengths[-number] >= FEWEST_BETWEEN:
        number += 1
    return number - 1 if number > 2 and lengths[-number] < FEWEST else number


def steps_missing(lengths: Sequence[int]) -> int | None:
    """How many more steps the last of these stretches needs before a change is judged; 0: none; None: no
    number is enough, as the stretch before it has fewer than FEWEST.

    ``lengths``: two or more, all of them `usable`.
    """
    *earlier, last = lengths
    if earlier[-1] < FEWEST:
        return None
    windows = (FEWEST_ONCE if len(lengths) == 2 else FEWEST_BACK) + 1
    windows -= sum(max(0, length // FEWEST - 1) for length in earlier)
    return max(0, FEWEST * max(1, windows) - last)


def change_by(stretches: Sequence[ArrayLike], base: float) -> Difference | None:
    """By how much the last stretch's setting differs from the other one; None: not known, see
    `steps_missing`.

    ``stretches``: figures of consecutive steps, two settings in turn, oldest first, two or more, all
    `usable`. ``base``: what the other setting takes.
    """
    series = [np.asarray(stretch, dtype=np.float64) for stretch in stretches]
    lengths = [len(stretch) for stretch in series]
    if steps_missing(lengths) != 0:
        return None
    limit, length = max(map(limit_of, series)), _window(lengths)
    means = [_means(winsorize(stretch, limit), length) for stretch in series]
    by_share = min(float(each.min()) for each in means) > 0
    if by_share:  # what a neighbour takes, and noise, is so many per cent of a step
        means = [np.log(each) for each in means]
    changes = np.array([after[0] - before[-1] for before, after in pairwise(means)])
    apart = np.concatenate([np.diff(each) for each in means])
    rounding = ROUNDING * max(1.0, *(float(np.abs(each).max()) for each in means))
    changes[np.abs(changes) < rounding] = apart[np.abs(apart) < rounding] = 0.0
    drift = float(np.median(apart))
    reach = float(np.sort(np.abs(apart - drift))[_level(len(changes), len(apart)) - 1])
    shown = np.resize([1.0, -1.0], len(changes))[::-1] * (changes - drift)
    found = [float(shown.mean()), float(shown.min()) - reach, float(shown.max()) + reach]
    return Difference(base, *(base * math.expm1(each) for each in found) if by_share else found)


def _window(lengths: Sequence[int]) -> int:
    first, *between, last = lengths
    longest = min(first, last, *(length // 2 for length in between))
    length = FEWEST
    while 2 * length <= longest and sum(lengths) // (2 * length) >= LONGER:
        length *= 2
    return length


def _means(stretch: Floats, length: int) -> Floats:
    """Of windows that have this length or a little more, and fill the stretch."""
    return np.array([part.mean() for part in np.array_split(stretch, max(1, len(stretch) // length))])


def _level(changes: int, apart: int) -> int:
    """Which of so many differences of one setting, by size, each change has to exceed: one that all changes
    but one, which may be a neighbour's, exceed with one sign in CHANCE of cases; the largest where it takes
    more differences.
    """
    beyond: float = 2 * (CHANCE / 2) ** (1 / max(1, changes - 1))
    return min(apart, math.ceil((apart + 1) * (1 - beyond)))
