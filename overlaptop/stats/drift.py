"""How much a machine drifts by itself: two jobs that differ by no more are not known to differ.

Windows of steps of one setting differ in their means by noise and by what the machine does meanwhile: other
jobs come and go, clocks sink as it warms up. The noise inside two windows (noise.py) shows nothing of the
second. So the steps before a change, and those after it, are cut into windows, and the change has to be
larger by `MARGIN` than any two windows of one side are apart.

On seeded series of 100 to 512 steps on each side, at most 6 in 100 are called different that are not, where
the noise inside alone calls 12 to 100: random walks, slow waves, drifts as straight lines, and levels that
jump every 150 to 400 steps. A change by a fifth on a quiet machine is called one after 12 steps.

Turned down: a fitted random walk or Allan deviation (a jump of the machine's load is neither, and a few
windows do not tell which it is); a fixed share (too much for a quiet machine, too little for a shared one).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from overlaptop.stats.noise import FEWEST, ROUNDING, Floats, limit_of, winsorize

WINDOWS = 8
"""Of the steps before."""
FEWEST_BEFORE = WINDOWS * FEWEST
MARGIN = 1.5
_SHIFTS = 4
"""Windows begin at each quarter of one."""


def drift(before: ArrayLike, after: ArrayLike) -> float | None:
    """The most by which two sides may differ without a change, in the figure's own unit.

    Figures of consecutive steps, oldest first, shapes (n,) and (m,). None: too few on a side to tell,
    FEWEST_BEFORE and FEWEST.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (before, after)]
    n, m = map(len, sides)
    if n < FEWEST_BEFORE or m < FEWEST:
        return None
    limit = max(map(limit_of, sides))
    length = min(m, n // WINDOWS)
    return MARGIN * max(_apart(winsorize(side, limit), length) for side in sides)


def _apart(series: Floats, length: int) -> float:
    """The largest difference between the means of two windows of that length; 0 where there is only one."""
    first = np.arange(0, len(series) - length + 1, max(1, length // _SHIFTS))
    sums = np.concatenate([[0.0], np.cumsum(series)])
    means = (sums[first + length] - sums[first]) / length
    apart = float(means.max() - means.min())
    return apart if apart > ROUNDING * float(np.abs(means).max()) else 0.0
