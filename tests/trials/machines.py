"""Noise as machines make it, as shares of the step."""

import numpy as np


def noise(random, steps, kind):
    """Shape (steps,): white, correlated, drifting, jumping, skewed, or with a slow step in 25."""
    white = random.normal(0, 0.03, steps)
    if kind == "correlated":
        series = np.zeros(steps)
        for at in range(1, steps):
            series[at] = 0.8 * series[at - 1] + white[at]
        return series
    if kind == "drifting":
        return white + np.cumsum(random.normal(0, 0.003, steps))
    if kind == "jumping":
        levels, at = np.zeros(steps), 0
        while at < steps:
            length = random.integers(150, 400)
            levels[at : at + length] = random.choice([0, 0.3])
            at += length
        return white + levels
    if kind == "skewed":
        return random.exponential(0.05, steps)
    if kind == "slow steps":
        return white + (random.random(steps) < 0.04) * random.exponential(1.0, steps)
    return white


KINDS = ("white", "correlated", "drifting", "jumping", "skewed", "slow steps")
