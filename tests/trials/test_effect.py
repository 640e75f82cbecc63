"""What trials show: a difference where there is one, none where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.trials.effect import LOOKS, Pair, is_known, relative, slope

KINDS = ("white", "correlated", "drifting", "jumping", "skewed", "slow steps")
GAP, TRIAL, BLOCK, SETTLE = 20, 14, 10, 2


def noise(random, steps, kind):
    """As machines make it, as shares of the step, (steps,)."""
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


def pairs_of(random, kind, change, pairs):
    """Trials as the runner makes them, on a machine of this kind."""
    period = TRIAL + GAP
    series = 100 * (1 + noise(random, period * pairs + GAP, kind))
    found = []
    for at in range(GAP, period * pairs, period):
        series[at : at + TRIAL] *= 1 + change
        end, half = at + TRIAL, BLOCK // 2
        tried = series[at + SETTLE : at + SETTLE + BLOCK]
        around = (*series[at - half : at], *series[end + SETTLE : end + SETTLE + half])
        found.append(Pair(tried.mean(), np.mean(around)))
    return found


def until_known(pairs):
    for count in LOOKS:
        effect = relative(pairs[:count])
        assert effect is not None
        if is_known(effect):
            break
    return effect


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [0.0, 0.05])
def test_the_interval_holds_the_true_difference(kind, change):
    """So no difference is seldom called one."""
    random, runs = np.random.default_rng(7), 300
    found = [until_known(pairs_of(random, kind, change, LOOKS[-1])) for _ in range(runs)]
    held = sum(each.low <= change <= each.high for each in found)
    assert held / runs > 0.915  # 95 in 100, less three standard errors


@pytest.mark.parametrize("kind", ["white", "drifting", "jumping", "skewed"])
def test_a_change_by_a_twentieth_is_found_in_a_few_trials(kind):
    random = np.random.default_rng(9)
    found = [until_known(pairs_of(random, kind, 0.05, LOOKS[-1])) for _ in range(50)]
    assert all(each.differs for each in found)
    assert np.median([each.pairs for each in found]) <= LOOKS[1]


def test_too_few_trials_give_no_interval():
    assert relative([]) is slope([]) is None
    effect = relative([Pair(110, 100)] * (LOOKS[0] - 1))
    assert effect.centre == pytest.approx(0.1)
    assert (effect.low, effect.high, effect.bounded) == (-1.0, math.inf, False)
    assert not is_known(effect)


def test_jitter_widens_a_slope_upwards_only():
    pairs = [Pair(110 + at / 10, 100, 10, 2.0) for at in range(LOOKS[0])]
    sharp = slope([Pair(pair.tried_ns, pair.present_ns, 10) for pair in pairs])
    blurred = slope(pairs)
    assert (blurred.centre, blurred.low) == (sharp.centre, sharp.low)
    assert blurred.high == pytest.approx(sharp.high + 0.2)


@given(st.lists(st.floats(1, 1000), min_size=7, max_size=30), st.floats(0.5, 2), st.floats(1, 1e6))
def test_the_interval_follows_shift_and_unit(presents, factor, delay):
    pairs = [Pair(factor * each, each) for each in presents]
    effect = relative(pairs)
    assert effect.centre == pytest.approx(factor - 1, abs=1e-9)
    assert effect.low - 1e-9 <= effect.centre <= effect.high + 1e-9
    late = slope([Pair(each + delay, each, delay) for each in presents])
    assert late.centre == pytest.approx(1, abs=1e-6)
