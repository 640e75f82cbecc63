"""Windows of several settings, measured in turn: what each setting takes, and how they differ.

A job drifts: it warms up, its neighbours come and go. Windows that come right after each other have the
drift in common, so it is settings within a round that are compared, over as many rounds as there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from overlaptop.stats.noise import (
    CONFIDENCE,
    Difference,
    Floats,
    estimate_within,
    limit_of,
    two_sided,
)

GUESS_FREEDOM = 4
JUMP_CONFIDENCE = 0.99
"""That the machine has changed within a round, before that is believed."""
MOST_JUMPS = 3
_PULL = 1e-4
_ALIKE = 1e-6
_LEAST_NEW = 1e-6
"""What is left of a column that the others do not already tell."""
_LARGEST_LOG = 10.0
"""An interval that reaches 20,000 times as far has no end."""


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive steps of one setting, measured once."""

    setting: int
    round: int
    """Windows of a round came right after each other: what drifts is common to them."""
    values: tuple[float, ...]
    """Above 0, oldest first, at least one."""


@dataclass(frozen=True, slots=True)
class SettingEstimate:
    """What all windows of a setting say."""

    setting: int
    windows: int
    steps: int
    centre: float
    low: float
    high: float
    """The interval of the centre, less what drifted: as if all settings had run in all rounds."""


class Rounds:
    """Windows of several settings, interleaved in rounds, each setting in as many of them as one likes.

    The mean of a window is taken to be ``centre of its setting * drift of its round * noise``, and all
    settings have the same noise, in proportion to their time. So even two windows a setting give an
    interval worth having, once there are several settings. Centres and drifts are fitted by least squares
    of logarithms; two settings that share no round are compared by way of others that they share one with.

    The noise is what that leaves, together with a first guess worth `GUESS_FREEDOM` degrees of freedom:
    that windows differ among each other as much again as the steps inside them say. Else two rounds of few
    settings would tell nothing, or luck would make them look alike.

    A neighbour that comes or goes in the middle of a round makes all that is measured after it look longer,
    or shorter. With ``jumps`` that is looked for, and such a round is taken as two. It shows by settings
    that were measured on both sides of it, or again in other rounds.
    """

    def __init__(self, windows: Iterable[Window], *, jumps: bool = False) -> None:
        """With ``jumps``, windows come in the order in which they were measured. ValueError: no window, one
        without a step, or a figure that is not above 0.
        """
        self._windows = tuple(windows)
        series = [np.asarray(window.values, dtype=np.float64) for window in self._windows]
        if not series or not all(each.size and (each > 0).all() for each in series):
            raise ValueError("each window needs at least one step, and each step a figure above 0")
        self.settings = tuple(sorted({window.setting for window in self._windows}))
        """In order."""
        self._place = {setting: at for at, setting in enumerate(self.settings)}
        of_setting: defaultdict[int, list[Floats]] = defaultdict(list)
        for window, values in zip(self._windows, series, strict=True):
            of_setting[window.setting].append(values)
        # What is rare among all steps may yet be how the job runs with one setting; few steps do not tell.
        limit = max(limit_of(*series), *(limit_of(*own, sure=True) for own in of_setting.values()))
        estimates = [estimate_within(values, limit) for values in series]
        self._logs = np.log([each.centre for each in estimates])
        self._steps = np.array([each.steps for each in estimates])
        self._usual_steps = float(np.median(self._steps))
        inside = [
            (each.error / each.centre) ** 2 * each.steps / self._usual_steps
            for each in estimates
            if each.error is not None
        ]
        self._inside = float(np.mean(inside)) if inside else None
        self._labels: Sequence[int] = [window.round for window in self._windows]
        """What each window has its drift in common with."""
        for _ in range(MOST_JUMPS if jumps else 0):
            split = self._split()
            if split is None:
                break
            self._labels = split

    @property
    def repeated(self) -> bool:
        """Whether windows themselves tell their noise. Else it is a guess from the steps inside them."""
        return self._fitted.freedom > 0

    @property
    def noise(self) -> float | None:
        """The standard deviation of a window's mean, as a share of it, for a window of usual length; None:
        nothing tells it.
        """
        variance, freedom = self._variance
        return math.sqrt(variance) if freedom else None

    def estimate(self, setting: int, confidence: float = CONFIDENCE) -> SettingEstimate:
        """KeyError: it was not measured."""
        weights = np.zeros(len(self.settings))
        weights[self._place[setting]] = 1
        log, reach = self._told(weights, confidence)
        own = [
            steps
            for window, steps in zip(self._windows, self._steps.tolist(), strict=True)
            if window.setting == setting
        ]
        return SettingEstimate(
            setting,
            windows=len(own),
            steps=sum(own),
            centre=math.exp(log),
            low=math.exp(log - reach),
            high=math.exp(log + reach),
        )

    def difference(self, base: int, other: int, confidence: float = CONFIDENCE) -> Difference:
        """By how much `other` differs from `base`. KeyError: one of them was not measured."""
        weights = np.zeros(len(self.settings))
        weights[self._place[other]] += 1
        weights[self._place[base]] -= 1
        change, reach = self._told(weights, confidence)
        centre = math.exp(float(self._fitted.logs[self._place[base]]))
        return Difference(
            centre,
            centre * math.expm1(change),
            centre * math.expm1(change - reach),
            centre * math.expm1(change + reach),
        )

    def _told(self, weights: Floats, confidence: float) -> tuple[float, float]:
        """A combination of the settings' logarithms, and how far it may be off."""
        told = float(weights @ self._fitted.logs)
        variance, freedom = self._variance
        if not freedom:
            return told, math.inf
        error = math.sqrt(variance * float(weights @ self._fitted.covariance @ weights))
        reach = error * two_sided(confidence, freedom)
        return told, reach if reach < _LARGEST_LOG else math.inf

    def _split(self) -> list[int] | None:
        """The labels with one round told as two; None: nowhere, or it is not clear in which round."""
        labels = np.array(self._labels)
        places = np.flatnonzero(labels[1:] == labels[:-1]) + 1
        design, roots = self._design
        weighted = design * roots[:, None]
        freedom = len(design) - int(np.linalg.matrix_rank(weighted))
        if freedom < 2 or not len(places):
            return None
        # Of each place, as one more column: what the others leave of it, and how much it would explain.
        after = (np.arange(len(labels))[:, None] >= places) & (labels[:, None] == labels[places])
        columns = after * roots[:, None]
        rest = np.eye(len(design)) - weighted @ np.linalg.pinv(weighted)
        new = rest @ columns
        sizes, parts = (columns * new).sum(axis=0), new.T @ (self._logs * roots)
        tells = sizes > _LEAST_NEW
        gains = np.where(tells, parts**2 / np.where(tells, sizes, 1.0), 0.0)
        best = int(np.argmax(gains))
        left = float(np.sum((rest @ (self._logs * roots)) ** 2)) - gains[best]
        variance, freedom = self._variance_of(max(0.0, left), freedom - 1)
        least = two_sided(1 - (1 - JUMP_CONFIDENCE) / len(places), freedom) ** 2 * variance
        elsewhere = gains[labels[places] != labels[places[best]]]
        if gains[best] - elsewhere.max(initial=0.0) <= least:
            return None
        # Where several places explain it alike, settings between them were measured once, on either side:
        # they are given the benefit of the doubt.
        alike = np.flatnonzero(gains >= gains[best] * (1 - _ALIKE))
        slower = parts[best] > 0
        chosen = after[:, alike[0] if slower else alike[-1]]
        return [int(each) for each in np.where(chosen, labels.max() + 1, labels)]

    @cached_property
    def _variance(self) -> tuple[float, int]:
        """Of a usual window's mean, relative to it, and its degrees of freedom; 0: nothing tells it."""
        return self._variance_of(self._fitted.squares, self._fitted.freedom)

    def _variance_of(self, squares: float, freedom: int) -> tuple[float, int]:
        """From what a fit leaves, and the guess."""
        if self._inside is not None:
            # As much again between windows as inside them.
            squares, freedom = squares + GUESS_FREEDOM * 2 * self._inside, freedom + GUESS_FREEDOM
        return (squares / freedom if freedom else 0.0), freedom

    @property
    def _design(self) -> tuple[Floats, Floats]:
        """Which setting and which drift each window has, shape (windows, settings + labels), and the roots
        of the windows' weights.
        """
        rounds = {label: at for at, label in enumerate(sorted(set(self._labels)))}
        settings = len(self.settings)
        design = np.zeros((len(self._windows), settings + len(rounds)))
        for row, window, label in zip(design, self._windows, self._labels, strict=True):
            row[self._place[window.setting]] = 1
            row[settings + rounds[label]] = 1
        # A window of usual length has a weight of 1; were it endless, 2: the noise between windows stays.
        return design, np.sqrt(2 * self._steps / (self._steps + self._usual_steps))

    @cached_property
    def _fitted(self) -> _Fitted:
        design, roots = self._design
        settings, rounds = len(self.settings), design.shape[1] - len(self.settings)
        freedom = len(design) - int(np.linalg.matrix_rank(design))
        # Centres and drifts are only told apart by a pull of the drifts towards 0, too weak to matter where
        # settings share rounds. A round that shares none with the others is taken not to have drifted.
        pull = np.hstack([np.zeros((rounds, settings)), _PULL * np.eye(rounds)])
        inverse = np.linalg.pinv(np.vstack([design * roots[:, None], pull]))[:, : len(design)]
        solved = inverse @ (self._logs * roots)
        left = (self._logs - design @ solved) * roots
        covariance = inverse[:settings] @ inverse[:settings].T
        return _Fitted(solved[:settings], covariance, float(left @ left), freedom)


class _Fitted(NamedTuple):
    logs: Floats
    """Of the settings' centres, shape (s,)."""
    covariance: Floats
    """Of these for a noise of 1, shape (s, s)."""
    squares: float
    """The sum of what is left."""
    freedom: int
