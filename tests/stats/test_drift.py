"""What a machine does by itself is not taken for what a change did."""

from __future__ import annotations

import numpy as np
import pytest

from overlaptop.stats.comparison import compare_steps
from overlaptop.stats.drift import FEWEST_BEFORE, drift
from overlaptop.stats.noise import FEWEST
from tests.fleet.builders import step

from .series import correlated, difference

TRIALS = 100
AT_MOST = 0.1


def walk(random, steps):
    return 0.01 * np.cumsum(random.normal(size=steps))


def line(random, steps):
    return random.choice([-1, 1]) * 0.0005 * np.arange(steps)


def wave(random, steps):
    return 0.3 * np.sin(2 * np.pi * (np.arange(steps) / random.uniform(200, 3000) + random.random()))


def levels(random, steps):
    return np.cumsum((random.random(steps) < 1 / 300) * random.normal(0, 0.3, steps))


def two_levels(random, steps):
    return 0.4 * (np.cumsum(random.random(steps) < 1 / 300) % 2)


def called_different(before, after):
    """By the noise inside the two, and with the machine's drift."""
    apart, drifts = difference(before, after), drift(before, after)
    return apart.beyond_noise, apart.beyond_noise and abs(apart.change) > drifts


@pytest.mark.parametrize("steps", [(100, 30), (200, 200), (512, 64), (512, 512)])
@pytest.mark.parametrize("machine", [walk, line, wave, levels, two_levels])
def test_a_machine_that_drifts_is_seldom_called_changed(machine, steps):
    random = np.random.default_rng(12)
    before, after = steps
    called = []
    for _ in range(TRIALS):
        series = correlated(random, before + after) * np.exp(machine(random, before + after))
        called.append(called_different(series[:before], series[before:]))
    by_noise_alone, told = np.mean(called, axis=0)
    assert told <= AT_MOST
    assert by_noise_alone > 0.1  # else the machine would not have drifted


@pytest.mark.parametrize("share", [0.2, 0.3])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_change_by_a_fifth_on_a_quiet_machine_is_called_one_after_few_steps(share, sign):
    random = np.random.default_rng(13)
    for before in (FEWEST_BEFORE, 512):
        for _ in range(20):
            series = correlated(random, before + 2 * FEWEST)
            series[before:] *= 1 + sign * share
            assert called_different(series[:before], series[before:])[1]


def test_what_never_varies_never_drifts():
    assert drift([5.0] * 100, [7.0] * 100) == 0
    assert drift(np.full(100, 20 / 30), np.full(20, 0.1)) == 0


def test_an_outlier_is_no_drift():
    random = np.random.default_rng(14)
    series = correlated(random, 200)
    usual = drift(series[:150], series[150:])
    series[70] *= 20
    assert drift(series[:150], series[150:]) < 1.5 * usual


def test_with_too_few_steps_it_is_not_known():
    assert drift([1.0] * (FEWEST_BEFORE - 1), [1.0] * 100) is None
    assert drift([1.0] * 100, [1.0] * (FEWEST - 1)) is None
    assert drift([], []) is None


def test_a_prefetch_of_no_effect_on_a_shared_machine_gets_no_verdict_either_way():
    """Steps of 60 ms, of which a neighbour takes as much again now and then."""
    random = np.random.default_rng(15)
    busy = np.repeat(random.permutation(16) % 3 == 0, 40)
    lengths = 60 * correlated(random, len(busy)) * np.where(busy, 1.8, 1.0)
    steps = [step(0, at, compute=length) for at, length in enumerate(lengths)]
    for first, second in ((steps[:320], steps[320:360]), (steps[:360], steps[360:])):
        verdict = compare_steps(first, second)[0]
        assert "not known" in verdict.verdict or "no difference" in verdict.verdict
        assert verdict.better is None
