"""What noisy figures of steps show: a centre, its error, and whether two windows differ.

Steps are no independent draws. A slow moment lasts for several of them; now and then one takes ten times as
long; and steps that the host timed may be far off one by one while their mean is right, because it launches
ahead and then waits. So the centre is a *mean* of consecutive steps, and its error comes from how the
series wanders as a whole, not from how single steps scatter:

- Outliers are winsorized. A step farther than `FAR` robust standard deviations from the median counts as
  that far only. But where more than one step in twenty is that far, or where they come at regular
  intervals, that is how the job runs, and each counts in full: every tenth step that waits for the nine
  before it is no outlier. A median would take the nine for the job's pace.
- The error of the mean is that of its slowest waves: the series is projected onto the first few cosines,
  each of which is, like the mean itself, a sum over all steps, and as large as the mean is uncertain,
  whatever the steps' correlation ("equal-weighted cosines", Lazarus, Lewis, Stock and Watson 2018). With k
  waves it has k degrees of freedom. Few waves, so that they are slow even where few steps are there: with
  steps correlated by 0.8 from one to the next, 5 to 9 in 100 intervals of 95 % miss, from 24 steps on.

Turned down: batch means (of batches longer than the correlation there are too few, and steps left over); a
block bootstrap (2,000 resamplings four times a second, and too narrow for short series); a median (above).

What no single window shows is a drift slower than itself: see drift.py and interleaved.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEWEST = 12
"""With fewer steps, nothing is known of how they vary."""
CONFIDENCE = 0.95
FAR = 6.0
"""Robust standard deviations from the median, past which a step is an outlier."""
RARE = 0.05
"""Of all steps; one of them in any case. What occurs more often is no outlier."""
REGULAR_GAPS = 3
"""From so many gaps between them on, outliers that come at regular intervals are none."""
STEPS_PER_WAVE = 20
FEWEST_WAVES, MOST_WAVES = 2, 8
NO_DIFFERENCE = "no difference beyond noise"
LEAST_SHOWN = 0.01
"""Percent, or points: a smaller difference would read as 0."""
_MAD_TO_SIGMA = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""
ROUNDING = 1e-12
"""As a share of the figures: what differs by less is alike but for the last bits."""
_MOST_DEGREES = 1_000.0
"""Beyond it Student's t is the normal distribution."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure over a window of consecutive steps, in the figure's own unit."""

    steps: int
    centre: float
    """The mean, outliers winsorized."""
    quarter: float
    three_quarters: float
    """Half of the steps lie between these two: the quartiles."""
    error: float | None
    """The standard error of the centre; None with fewer than FEWEST steps."""
    degrees: float
    """Degrees of freedom of that error."""

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles: half of the steps lie within so much of their middle."""
        return (self.three_quarters - self.quarter) / 2


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two centres are apart, with the interval in which that lies for sure enough."""

    base: float
    """The centre from which the change is counted."""
    change: float
    """The other centre less this one."""
    low: float
    high: float
    """The interval of the change."""

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    @property
    def share(self) -> float | None:
        """The change as a fraction of the base; None where that is 0."""
        return self.change / abs(self.base) if self.base else None

    def words(self, less: str = "shorter", more: str = "longer", *, points: bool = False) -> str:
        """``3.1 % shorter (2.4 to 3.8)``, ``no difference beyond noise (±1.2 %)``.

        With `points` the figures are fractions, and their difference is given in percentage points, not as
        a share: ``4.2 points more (3.1 to 5.3)``.
        """
        if not points and not self.base:
            if not self.beyond_noise:
                return NO_DIFFERENCE
            return f"{more if self.change > 0 else less}: it was 0"
        unit, whole = ("points", 1.0) if points else ("%", abs(self.base))
        change, low, high = (100 * figure / whole for figure in (self.change, self.low, self.high))
        reach = (high - low) / 2
        if not self.beyond_noise:
            return f"{NO_DIFFERENCE} (±{_figure(reach, reach)} {unit})" if reach else "the same"
        if abs(change) < LEAST_SHOWN:
            return f"less than {LEAST_SHOWN} {unit} {more if change > 0 else less}"
        near, far = sorted((abs(low), abs(high)))
        words = f"{_figure(abs(change), reach)} {unit} {more if change > 0 else less}"
        return f"{words} ({_figure(near, reach)} to {_figure(far, reach)})" if reach else words


def estimate(values: ArrayLike) -> Estimate | None:
    """Of one window: finite figures of consecutive steps, oldest first, shape (n,). None: n is 0."""
    series = np.asarray(values, dtype=np.float64)
    return estimate_within(series, limit_of(series)) if series.size else None


def both(before: ArrayLike, after: ArrayLike) -> tuple[Estimate, Estimate] | None:
    """The estimates of two windows that are to be compared; None where one is empty.

    An outlier in one of them is one in the other: where one has so many that they count in full, they do
    in both.
    """
    windows = [np.asarray(window, dtype=np.float64) for window in (before, after)]
    if not all(window.size for window in windows):
        return None
    limit = max(limit_of(window) for window in windows)
    first, second = (estimate_within(window, limit) for window in windows)
    return first, second


def between(before: Estimate, after: Estimate) -> Difference | None:
    """The difference of two estimates by Welch's t: each has an error of its own. None: one has none."""
    if before.error is None or after.error is None:
        return None
    change = after.centre - before.centre
    if abs(change) < ROUNDING * max(abs(before.centre), abs(after.centre)):
        change = 0.0
    error, degrees = math.hypot(before.error, after.error), _MOST_DEGREES
    if error:
        share = (before.error / error) ** 2  # of the difference's variance, the first window's
        degrees = 1 / (share**2 / before.degrees + (1 - share) ** 2 / after.degrees)
    reach = error * two_sided(CONFIDENCE, degrees)
    return Difference(before.centre, change, change - reach, change + reach)


def two_sided(confidence: float, degrees: float) -> float:
    """How many standard errors an interval of this confidence reaches to each side: Student's t, with 1 or
    more degrees of freedom, accurate to a thousandth up to a confidence of 0.9998.
    """
    # With t = sqrt(degrees) * tan(angle), the density of the angle is cos(angle) ** (degrees - 1). A table
    # for each tenth of a degree of freedom, the one below: the interval is rather too wide.
    tenths = math.floor(10 * min(degrees, _MOST_DEGREES))
    angles, reached = _angles(tenths / 10)
    return math.sqrt(tenths / 10) * math.tan(float(np.interp(confidence, reached, angles)))


@lru_cache(maxsize=128)
def _angles(degrees: float) -> tuple[Floats, Floats]:
    """Angles from 0 to a right one, and the share of the distribution up to each."""
    angles = np.linspace(0.0, math.pi / 2, 4097)
    density = np.clip(np.cos(angles), 0.0, None) ** (degrees - 1)
    reached = np.append(0.0, np.cumsum(density[1:] + density[:-1]))
    return angles, reached / reached[-1]


def estimate_within(series: Floats, limit: float) -> Estimate:
    """As `estimate`, with what is an outlier decided elsewhere: farther than `limit`, see `limit_of`."""
    winsorized = winsorize(series, limit)
    quarter, three_quarters = np.percentile(series, (25, 75))
    waves = min(max(len(winsorized) // STEPS_PER_WAVE, FEWEST_WAVES), MOST_WAVES)
    error = None
    if len(winsorized) >= FEWEST:
        amplitudes = _cosines(len(winsorized), waves) @ winsorized
        error = math.sqrt(float(np.mean(amplitudes**2)) / len(winsorized))
        if error < ROUNDING * float(np.abs(winsorized).max()):
            error = 0.0
    return Estimate(
        steps=len(series),
        centre=float(winsorized.mean()),
        quarter=float(quarter),
        three_quarters=float(three_quarters),
        error=error,
        degrees=float(waves),
    )


@lru_cache(maxsize=64)
def _cosines(steps: int, waves: int) -> Floats:
    """The slowest waves that sum up to 0: orthonormal rows, shape (waves, steps)."""
    phases = np.outer(np.arange(1, waves + 1), (np.arange(steps) + 0.5) / steps)
    return np.cos(math.pi * phases) * math.sqrt(2 / steps)


def limit_of(*windows: Floats, sure: bool = False) -> float:
    """How far a step of these windows may be from the median, in robust standard deviations; `math.inf`: as
    far as it likes. With `sure`, outliers may be more than RARE by chance.
    """
    far = [_far(window) for window in windows]
    steps = sum(map(len, windows))
    chance = 2 * math.sqrt(RARE * (1 - RARE) * steps) if sure else 0.0
    if sum(map(len, far)) > max(1, int(RARE * steps + chance)):
        return math.inf
    gaps = np.concatenate([np.diff(at) for at in far])
    # What strikes at random leaves gaps that differ as much as they are long.
    regular = len(gaps) >= REGULAR_GAPS and float(gaps.std()) < float(gaps.mean()) / 2
    return math.inf if regular else FAR


def _far(window: Floats) -> NDArray[np.intp]:
    """Which steps are as far from the median as an outlier; where most are alike, any other."""
    median, scale = _middle(window)
    return np.flatnonzero(np.abs(window - median) > FAR * scale)


def winsorize(window: Floats, limit: float) -> Floats:
    """The window with its outliers pulled in to `limit`, see `limit_of`."""
    median, scale = _middle(window)
    return np.clip(window, median - limit * scale, median + limit * scale) if limit < math.inf else window


def _middle(window: Floats) -> tuple[float, float]:
    """The median, and the robust standard deviation about it."""
    median = float(np.median(window))
    return median, _MAD_TO_SIGMA * float(np.median(np.abs(window - median)))


def _figure(percent: float, reach: float) -> str:
    """With as many decimals as the interval is worth."""
    worth = reach or percent / 2
    decimals = 0 if worth >= 5 else 1 if worth >= 0.05 else 2
    return f"{percent:,.{decimals}f}"
