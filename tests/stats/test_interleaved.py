"""Settings that are measured in turn are told apart, however the machine drifts."""

import math

import numpy as np
import pytest

from overlaptop.stats.interleaved import InterleavedWindows, SettingWindow

from .series import correlated

TRUE = {1: 1.10, 5: 1.0, 25: 1.0, 50: 1.02, 100: 1.05, 200: 1.0}


def in_turn(random, rounds, *, drift=0.0, slope=0.0, between=0.0, steps=24, left_out=(), **how):
    """Windows of all settings, each round in the order opposite to the one before; `drift` from round to
    round, `slope` over all of them; `left_out`: (setting, round).
    """
    drifts = 1 + drift * random.normal(size=rounds)
    series = iter(correlated(random, steps, trials=rounds * len(TRUE), **how))
    order = [(each, at) for at in range(rounds) for each in list(TRUE)[:: -1 if at % 2 else 1]]
    found = []
    for number, (setting, at) in enumerate(order):
        slower = drifts[at] * (1 + slope * number / len(order)) * (1 + between * random.normal())
        values = tuple(next(series) * TRUE[setting] * slower)
        if (setting, at) not in left_out:
            found.append(SettingWindow(setting, values))
    return found


def jumping(jump_at, jump):
    """Three rounds; from one window on, all are slower by the factor `jump`."""
    return [
        SettingWindow(each.setting, tuple(np.array(each.values) * (jump if number >= jump_at else 1)))
        for number, each in enumerate(in_turn(np.random.default_rng(3), 3, steps=12, spread=0.001))
    ]


@pytest.mark.parametrize("machine", [{}, {"drift": 0.05}, {"slope": 0.1}, {"between": 0.007}], ids=str)
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_settings_that_do_not_differ_are_rarely_said_to_however_the_job_drifts(machine, rounds):
    random = np.random.default_rng(11)
    different = 0
    for _ in range(60):
        found = InterleavedWindows(in_turn(random, rounds, outliers=0.02, **machine))
        different += found.difference(5, 25).beyond_noise + found.difference(25, 200).beyond_noise
    assert different / 120 <= 0.08


def test_a_drift_that_two_settings_share_does_not_hide_their_difference():
    found = InterleavedWindows(in_turn(np.random.default_rng(2), 4, drift=0.3))
    assert found.difference(5, 50).share == pytest.approx(0.02, abs=0.015)
    assert found.difference(5, 1).share == pytest.approx(0.1, abs=0.015)
    assert found.estimate(1).centre / found.estimate(5).centre == pytest.approx(1.1, rel=0.015)


@pytest.mark.parametrize("jump", [1.15, 0.85])
@pytest.mark.parametrize("jump_at", [2, 3, 8, 9, 14])
def test_a_jump_in_the_middle_of_a_round_moves_a_setting_by_less_than_half_of_it(jump, jump_at):
    found = InterleavedWindows(jumping(jump_at, jump))
    for setting in TRUE:
        assert found.difference(5, setting).share == pytest.approx(TRUE[setting] - 1, abs=0.07)


def test_the_steadier_the_machine_the_narrower_the_interval():
    steady, jumped = InterleavedWindows(jumping(0, 1.0)), InterleavedWindows(jumping(8, 1.15))
    assert steady.difference(5, 1).high < jumped.difference(5, 1).high
    assert steady.noise < 0.003


def test_settings_that_were_never_neighbours_are_compared_by_way_of_others():
    only = {(100, 0), (100, 1), (1, 2), (1, 3)}
    windows = in_turn(np.random.default_rng(4), 4, drift=0.02, left_out=only, spread=0.005)
    found = InterleavedWindows(windows)
    assert found.difference(1, 100).share == pytest.approx(1.05 / 1.10 - 1, abs=0.02)
    direct, by_others = found.difference(1, 5), found.difference(1, 100)
    assert by_others.high - by_others.low > direct.high - direct.low


def test_before_anything_is_repeated_the_noise_is_a_guess_from_inside_the_windows():
    once = InterleavedWindows(in_turn(np.random.default_rng(6), 1))
    assert 0.002 < once.noise < 0.03
    assert once.difference(5, 1).beyond_noise
    assert not once.difference(5, 25).beyond_noise


def test_windows_too_short_to_tell_their_noise_leave_everything_open_until_they_are_repeated():
    short = [SettingWindow(setting, (float(setting),) * 5) for setting in (1, 2)]
    found = InterleavedWindows(short)
    assert found.noise is None
    assert found.difference(1, 2).high == math.inf
    assert found.difference(1, 2).share == pytest.approx(1)
    assert (found.estimate(1).low, found.estimate(1).high) == (0, math.inf)
    again = InterleavedWindows([*short, SettingWindow(2, (2.01,) * 5), SettingWindow(1, (1.01,) * 5)])
    assert again.noise is not None
    assert again.difference(1, 2).beyond_noise


def test_a_longer_window_weighs_more_but_not_by_all_its_steps():
    windows = [
        SettingWindow(setting, (value,) * steps)
        for setting, value, steps in [(1, 1.0, 12), (2, 1.0, 12), (2, 1.0, 12), (1, 1.2, 1200)]
    ]
    found = InterleavedWindows(windows).estimate(1)
    assert (found.windows, found.steps) == (2, 1212)
    assert 0.5 < math.log(found.centre) / math.log(1.2) < 0.75


def test_more_confidence_takes_a_wider_interval():
    found = InterleavedWindows(in_turn(np.random.default_rng(1), 3))
    usual, sure = found.difference(5, 50), found.difference(5, 50, confidence=0.999)
    assert sure.low < usual.low < usual.change < usual.high < sure.high
