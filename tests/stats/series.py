"""Series of step times as jobs make them: correlated, with outliers, timed by a host that runs ahead."""

import numpy as np

from overlaptop.stats.noise import between, both


def correlated(random, steps, phi=0.5, spread=0.02, outliers=0.0, tails=False, trials=None):
    """Around 1, first-order autoregressive; an outlier takes 2 to 10 times as long. Shape (steps,), or
    (trials, steps)."""
    warm, shape = 50, (trials or 1, steps)
    of_all = (steps + warm, trials or 1)
    shocks = random.standard_t(3, of_all) if tails else random.normal(size=of_all)
    series = np.zeros(of_all)
    for at in range(1, steps + warm):
        series[at] = phi * series[at - 1] + shocks[at]
    series = 1 + spread * np.sqrt(1 - phi**2) * series[warm:].T
    series = np.where(random.random(shape) < outliers, series * random.uniform(2, 10, shape), series)
    return series if trials else series[0]


def by_a_host_that_runs_ahead(true_ns, period):
    """The same steps by the host's clock: it launches `period` of them at once, and then waits for all."""
    seen = np.full(len(true_ns), 0.2 * np.mean(true_ns))
    for first in range(0, len(true_ns), period):
        batch = slice(first, first + period)
        seen[batch.start : batch.stop][-1] += true_ns[batch].sum() - seen[batch].sum()
    return seen


def difference(before, after):
    """How far the second of two windows is from the first."""
    return between(*both(before, after))
