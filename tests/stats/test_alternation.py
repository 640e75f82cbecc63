"""A change is told from what the machine does by itself, and found again where the job goes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.stats.alternation import change_by, steps_missing, usable
from overlaptop.stats.noise import FEWEST

from .series import correlated

TRIALS = 200
MOST_FALSE = 0.05 + 0.03
"""With two standard deviations of the count of trials."""
ONCE, ALTERNATED = (300, 120), (100, 36, 36, 36)


def level(machine, random, steps, step_ms):
    """What the machine does by itself, as logarithm."""
    way, at_min = random.choice([-1, 1]), np.arange(steps) * step_ms / 60_000
    if machine == "drift":
        return way * 0.1 * at_min
    if machine == "wave":
        return 0.05 * np.sin(2 * np.pi * (at_min / 3 + random.random()))
    if machine == "levels":
        return np.cumsum((random.random(steps) < 1 / 200) * random.normal(0, 0.3, steps))
    if machine == "two levels":
        return 0.4 * (np.cumsum(random.random(steps) < 1 / 300) % 2)
    if machine == "once":
        return way * 0.3 * (np.arange(steps) >= random.integers(steps))
    if machine == "walk":
        return 0.005 * np.cumsum(random.normal(size=steps))
    return np.zeros(steps)


def called(random, machine, lengths, effect=0.0, step_ms=(100, 1000)):
    """Of each simulated job: -1 where the last setting is called shorter, 1: longer, 0: neither."""
    steps = sum(lengths)
    signs = []
    for series in correlated(random, steps, trials=TRIALS):
        own = series * np.exp(level(machine, random, steps, random.choice(step_ms)))
        stretches = np.split(own, np.cumsum(lengths)[:-1])
        for at in range(len(stretches) - 1, -1, -2):
            stretches[at] *= 1 + effect
        told = change_by(stretches, 1.0)
        signs.append(np.sign(told.change) if told is not None and told.beyond_noise else 0)
    return np.array(signs)


MACHINES = ["steady", "drift", "wave", "levels", "two levels", "once", "walk"]


@pytest.mark.parametrize("lengths", [ONCE, ALTERNATED[:3], ALTERNATED])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_machine_does_by_itself_is_seldom_called_a_change(machine, lengths):
    random = np.random.default_rng(21)
    assert np.mean(called(random, machine, lengths) != 0) <= MOST_FALSE


@pytest.mark.parametrize("effect", [-0.05, 0.05])
@pytest.mark.parametrize(
    ("machine", "often"),
    [("steady", 0.95), ("drift", 0.95), ("walk", 0.55), ("levels", 0.6), ("once", 0.6)],
)
def test_a_change_by_a_twentieth_is_found_after_one_alternation(machine, often, effect):
    random = np.random.default_rng(22)
    signs = called(random, machine, ALTERNATED, effect, step_ms=(1000,))
    assert np.mean(signs == np.sign(effect)) >= often
    assert np.mean(signs == -np.sign(effect)) <= 0.01


def test_one_jump_of_the_machine_at_the_change_is_not_found_again():
    random = np.random.default_rng(23)
    beyond = []
    for series in correlated(random, sum(ALTERNATED), trials=TRIALS):
        series[ALTERNATED[0] :] *= 1.5
        told = change_by(np.split(series, np.cumsum(ALTERNATED)[:-1]), 1.0)
        beyond.append(told is not None and told.beyond_noise)
    assert np.mean(beyond) <= MOST_FALSE


@given(st.lists(st.integers(0, 100), min_size=2, max_size=8))
def test_a_verdict_comes_with_exactly_the_steps_that_were_missing(lengths):
    number = usable(lengths)
    lengths = lengths[-number:]
    missing = steps_missing(lengths)
    if missing is None:
        assert lengths[-2] < FEWEST
        return
    assert change_by([[1.0] * length for length in (*lengths[:-1], lengths[-1] + missing)], 1.0) is not None
    if missing:
        fewer = (*lengths[:-1], lengths[-1] + missing - 1)
        assert change_by([[1.0] * length for length in fewer], 1.0) is None


def test_what_never_varies_is_told_exactly_and_what_is_0_has_no_share():
    told = change_by([[4.0] * 300, [5.0] * 100], 4.0)
    assert (told.change, told.low, told.high) == pytest.approx((1, 1, 1))
    told = change_by([[0.0] * 300, [5.0] * 100], 0.0)
    assert (told.change, told.low, told.high) == (5, 5, 5)
    told = change_by([[1 / 3] * 300, [1 / 3] * 100], 1 / 3)
    assert (told.change, told.beyond_noise) == (0, False)


def test_what_lies_before_a_stretch_too_short_for_two_windows_is_not_used():
    assert usable([100, 24, 30, 3]) == 4
    assert usable([100, 23, 30, 3]) == 3
    assert usable([11, 30, 3]) == 2
    assert usable([100, 30, 5, 3]) == 2
    assert usable([9]) == 1
