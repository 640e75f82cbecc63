"""How much communication beside it slows compute: all-reduces take processors that backward would use.

On a CPU gloo's threads and the kernels share the cores; on a GPU NCCL's kernels hold some of the
multiprocessors. One number for it, ``backward = alone + factor * hidden``, taken from settings that were
measured and hide more or less. It is used only where it is beyond noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from overlaptop.stats.noise import estimate, two_sided

LEAST_SPREAD = 0.05
"""Of backward: where the settings' hidden times lie closer, there is nothing to learn from them."""
LEAST_ERROR = 0.01
"""Of backward: settings that were measured at different times differ by so much for other reasons."""
FEWEST_SETTINGS = 4
"""A job drifts from setting to setting: only more settings than a line needs show how much."""
SURE = 0.99
"""The confidence with which the factor must be above 0."""
LARGEST = 2.0
"""Communication that slows compute by more than twice its own time is something else."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What backward takes, by the communication beside it."""

    alone_ns: float
    """Backward with none."""
    factor: float
    """What each ns of hidden communication adds to it."""
    error: float
    """The factor's standard error."""
    settings: int


def slowdown(settings: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Slowdown | None:
    """The line through the settings, each by its steps' backward and hidden ns; None where it is not sure
    that there is any.

    Weighted least squares; a setting weighs by how sure its backward is.
    """
    hidden, backward, errors = [], [], []
    for backward_ns, hidden_ns in settings:
        found = estimate(backward_ns)
        if found is not None and found.error is not None:
            hidden.append(float(median(hidden_ns)))
            backward.append(found.centre)
            errors.append(max(found.error, LEAST_ERROR * found.centre))
    if len(hidden) < FEWEST_SETTINGS or max(hidden) - min(hidden) < LEAST_SPREAD * min(backward):
        return None
    x, y, weights = np.array(hidden), np.array(backward), np.array(errors) ** -2.0
    centre, level = np.average(x, weights=weights), np.average(y, weights=weights)
    spread = float((weights * (x - centre) ** 2).sum())
    factor = float((weights * (x - centre) * (y - level)).sum()) / spread
    left = y - level - factor * (x - centre)
    # Points that scatter more about the line than their errors say make it less sure.
    degrees = len(x) - 2
    error = math.sqrt(max(1.0, float((weights * left**2).sum()) / degrees) / spread)
    alone_ns = float(level - factor * centre)
    if not two_sided(SURE, degrees) * error < factor <= LARGEST or alone_ns <= 0:
        return None
    return Slowdown(alone_ns, factor, error, len(hidden))
