"""Several settings measured in turn on a machine that drifts: what each one takes, and how they differ.

A job warms up, and its neighbours come and go, so windows that lie close together in time have more in
common than others. The model: the logarithm of a window's mean is its setting's, plus a drift, plus noise.
The drift is a random walk from window to window; all settings have the same noise, in proportion to their
time. Settings are fitted by generalised least squares, and how far the walk goes against the noise is the
most likely of `DRIFTS` (restricted maximum likelihood). A steady machine thus counts all windows alike, and
one that jumps has each window compared with its neighbours.

The noise is what the fit leaves, together with a first guess worth `GUESS_DEGREES` degrees of freedom: that
windows differ among each other as much again as the steps inside them do. Else two windows of few settings
would show nothing, or luck would make them look alike.

Turned down: a level for each round, and rounds split where the machine jumped (as much code again, and it
missed more on simulated machines: benchmarks/README.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from overlaptop.stats.noise import (
    CONFIDENCE,
    Difference,
    Estimate,
    Floats,
    estimate_within,
    limit_of,
    two_sided,
)

DRIFTS = (0.0, 0.1, 1.0, 10.0, 100.0)
"""Variance of the walk's step from one window to the next, over that of a window's noise."""
GUESS_DEGREES = 4
LARGEST_REACH = 10.0
"""Of a logarithm: an interval that reaches 20,000 times as far has no end."""


@dataclass(frozen=True, slots=True)
class SettingWindow:
    """Consecutive steps with one setting."""

    setting: int
    values: tuple[float, ...]
    """Above 0, oldest first, at least one."""


@dataclass(frozen=True, slots=True)
class SettingEstimate:
    """All windows of a setting together."""

    setting: int
    windows: int
    steps: int
    centre: float
    low: float
    high: float
    """The interval of the centre, the drift taken off; 0 and infinite where there are too few steps."""


class InterleavedWindows:
    """Windows in the order in which they were measured, each setting in as many as one likes."""

    def __init__(self, windows: Iterable[SettingWindow]) -> None:
        """One window or more."""
        self._windows = tuple(windows)
        series = [np.asarray(window.values, dtype=np.float64) for window in self._windows]
        of_setting: defaultdict[int, list[Floats]] = defaultdict(list)
        for window, values in zip(self._windows, series, strict=True):
            of_setting[window.setting].append(values)
        self.settings = tuple(sorted(of_setting))
        """In order."""
        # What is rare among all steps may be how the job runs with one setting; few steps do not show it.
        limit = max(limit_of(*series), *(limit_of(*own, sure=True) for own in of_setting.values()))
        self._fit([estimate_within(values, limit) for values in series])

    def _fit(self, means: list[Estimate]) -> None:
        logs = np.log([each.centre for each in means])
        steps = np.array([each.steps for each in means])
        usual_steps = float(np.median(steps))
        inside = [
            (each.error / each.centre) ** 2 * each.steps / usual_steps
            for each in means
            if each.error is not None
        ]
        guess = (GUESS_DEGREES * 2 * float(np.mean(inside)), GUESS_DEGREES) if inside else (0.0, 0)
        design = np.array(
            [[float(window.setting == setting) for setting in self.settings] for window in self._windows]
        )
        degrees = len(logs) - len(self.settings) + guess[1]
        # A window of usual length has a variance of 1, an endless one 1/2: noise between windows stays.
        noise = np.diag((steps + usual_steps) / (2 * steps))
        at = np.arange(float(len(logs)))
        walk = np.minimum.outer(at, at)
        walk += walk.mean() - walk.mean(axis=0) - walk.mean(axis=1)[:, None]  # about its own mean
        least = math.inf
        for drift in DRIFTS:
            covariance = noise + drift * walk
            weights = np.linalg.inv(covariance)
            fitted = np.linalg.inv(design.T @ weights @ design)
            centres = fitted @ design.T @ weights @ logs
            left = logs - design @ centres
            variance = (float(left @ weights @ left) + guess[0]) / max(1, degrees)
            unlikely = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(fitted)[1]
            unlikely += degrees * math.log(max(variance, 1e-300))
            if unlikely < least - 1e-6:  # of equals, the steadier machine
                least = unlikely
                self._logs, self._covariance = centres, variance * fitted
                self._variance, self._degrees = variance, degrees

    @property
    def noise(self) -> float | None:
        """The standard deviation of a window's mean, as a share of it, for a window of usual length; None:
        not known.
        """
        return math.sqrt(self._variance) if self._degrees else None

    def estimate(self, setting: int) -> SettingEstimate:
        """Of a setting that was measured, with CONFIDENCE."""
        log, reach = self._contrast(CONFIDENCE, plus=setting)
        own = [window for window in self._windows if window.setting == setting]
        return SettingEstimate(
            setting,
            windows=len(own),
            steps=sum(len(window.values) for window in own),
            centre=math.exp(log),
            low=math.exp(log - reach),
            high=math.exp(log + reach),
        )

    def difference(self, base: int, other: int, confidence: float = CONFIDENCE) -> Difference:
        """By how much `other` differs from `base`; both were measured."""
        change, reach = self._contrast(confidence, plus=other, minus=base)
        centre = self.estimate(base).centre
        return Difference(
            centre,
            *(centre * math.expm1(log) for log in (change, change - reach, change + reach)),
        )

    def _contrast(self, confidence: float, plus: int, minus: int | None = None) -> tuple[float, float]:
        """The logarithm of a setting, or of two settings' ratio, and how far it may be off."""
        weights = np.zeros(len(self.settings))
        weights[self.settings.index(plus)] += 1
        if minus is not None:
            weights[self.settings.index(minus)] -= 1
        log = float(weights @ self._logs)
        if not self._degrees:
            return log, math.inf
        error = math.sqrt(max(0.0, float(weights @ self._covariance @ weights)))
        reach = error * two_sided(confidence, self._degrees)
        return log, reach if reach < LARGEST_REACH else math.inf
