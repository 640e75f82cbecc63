"""Measures this job's cost of measuring: measured steps against unmeasured ones before and after.

Drift of the job cancels. Noise makes the estimate too low as often as too high, and sometimes negative.
"""

import math
import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from overlaptop.timeline.averages import median, sigma

MIN_COMPARISONS, MAX_COMPARISONS = 4, 64
MAX_NEIGHBOURS = 32  # unmeasured steps on each side
OUTLIER_SIGMAS, LEAST_SLACK = 5.0, 0.1  # Values farther from the median than both limits are clipped


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of the step time, 0.01 for 1 %, and half of its 95 % interval."""

    share: float
    error: float


class CostMeter:
    """Compares each stretch of steps that the source works in with its neighbours."""

    def __init__(self) -> None:
        self.comparisons = 0
        self._costs: deque[tuple[float, float]] = deque(maxlen=MAX_COMPARISONS)  # share of the step, weight
        self.skip()

    def note(self, step_ns: int, *, touched: bool) -> None:
        """Add the next step. ``touched``: the source worked in it."""
        if not touched:
            (self._after_ns if self._touched_ns else self._before_ns).append(step_ns)
            if len(self._after_ns) == MAX_NEIGHBOURS:
                self._compare()
            return
        if self._after_ns:
            self._compare()
        self._touched_ns.append(step_ns)

    def skip(self) -> None:
        """Start over: the next step does not follow the last one, or the job has changed."""
        self._before_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)
        self._touched_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)
        self._after_ns: deque[int] = deque(maxlen=MAX_NEIGHBOURS)

    def estimate(self) -> Estimate | None:
        """Return the relative slowdown of steps that the source works in; None until known."""
        if len(self._costs) < MIN_COMPARISONS:
            return None
        shares = _clipped([share for share, _ in self._costs], least_slack=0.0)
        return weighted_mean(shares, [weight for _, weight in self._costs])

    def _compare(self) -> None:
        before_ns, touched_ns, after_ns = self._before_ns, self._touched_ns, self._after_ns
        self.skip()
        self._before_ns.extend(after_ns)
        if not before_ns:
            return
        means = [sum(_clipped(each)) / len(each) for each in (before_ns, touched_ns, after_ns)]
        usual_ns = (means[0] + means[2]) / 2
        weight = 1 / (1 / len(touched_ns) + (1 / len(before_ns) + 1 / len(after_ns)) / 4)
        self._costs.append((means[1] / usual_ns - 1, weight))
        self.comparisons += 1


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Return the mean of values with variances proportional to 1/weight, and its 95 % interval.

    Neighbours share unmeasured steps: the variance is Newey and West's (Econometrica 55, 1987) with the
    first lag in full, if that is larger. Student's quantile is 1.96 + 3.2 / (n - 1), within 5 %.
    """
    total = sum(weights)
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    off = [weight * (value - mean) for weight, value in zip(weights, values, strict=True)]
    scatter = sum(each * each for each in off) + 2 * max(0.0, sum(map(operator.mul, off, off[1:])))
    degrees = len(values) - 1
    return Estimate(mean, (1.96 + 3.2 / degrees) * math.sqrt(scatter * len(values) / degrees) / total)


def _clipped(values: Sequence[float], least_slack: float = LEAST_SLACK) -> list[float]:
    """Clip outliers: a checkpoint or a garbage collection is no cost of measuring."""
    middle = median(values)
    slack = max(OUTLIER_SIGMAS * sigma(values), least_slack * abs(middle))
    return [min(max(each, middle - slack), middle + slack) for each in values]
