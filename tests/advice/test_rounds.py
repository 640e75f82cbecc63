import math

import numpy as np
import pytest

from overlaptop.stats.noise import TOO_FEW
from overlaptop.tuning.rounds import Rounds, Window
from tests.advice.series import correlated

TRUE = {1: 1.10, 5: 1.0, 25: 1.0, 50: 1.02, 100: 1.05, 200: 1.0}


def measured(random, rounds, *, drift=0.0, between=0.0, steps=24, left_out=(), **how):
    """Windows of all settings in each round; `left_out`: (setting, round)."""
    drifts = 1 + drift * random.normal(size=rounds)
    windows = iter(correlated(random, steps, trials=rounds * len(TRUE), **how))
    return [
        Window(setting, at, tuple(next(windows) * true * drifts[at] * (1 + between * random.normal())))
        for at in range(rounds)
        for setting, true in TRUE.items()
        if (setting, at) not in left_out
    ]


@pytest.mark.parametrize("drift", [0.0, 0.05])
@pytest.mark.parametrize("rounds", [2, 3, 5])
@pytest.mark.parametrize("between", [0.0, 0.007])
def test_settings_that_do_not_differ_are_rarely_said_to_however_the_job_drifts(drift, rounds, between):
    random = np.random.default_rng(11)
    told = 0
    for _ in range(80):
        found = Rounds(measured(random, rounds, drift=drift, between=between, accidents=0.02))
        told += found.difference(5, 25).beyond_noise + found.difference(25, 200).beyond_noise
    assert told / 160 <= 0.08


def test_a_drift_that_two_settings_share_does_not_hide_their_difference():
    random = np.random.default_rng(2)
    found = Rounds(measured(random, 4, drift=0.3))
    assert found.difference(5, 50).share == pytest.approx(0.02, abs=0.015)
    assert found.difference(5, 1).share == pytest.approx(0.1, abs=0.015)
    assert found.estimate(1).centre / found.estimate(5).centre == pytest.approx(1.1, rel=0.015)


def in_turn(*rounds, jump_at=None, jump=1.15, noise=0.001):
    """Each round's settings in order; from one window on, all are slower."""
    random = np.random.default_rng(3)
    settings = [(setting, at) for at, each in enumerate(rounds) for setting in each]
    return [
        Window(
            setting, at, tuple(TRUE[setting] * jump ** (number >= jump_at) * random.normal(1, noise, 12))
        )
        if jump_at is not None
        else Window(setting, at, tuple(TRUE[setting] * random.normal(1, noise, 12)))
        for number, (setting, at) in enumerate(settings)
    ]


@pytest.mark.parametrize("jump", [1.15, 0.85])
@pytest.mark.parametrize("jump_at", [2, 3, 8, 9, 14])
def test_a_jump_within_a_round_makes_nothing_look_longer(jump, jump_at):
    settings = tuple(TRUE)
    windows = in_turn(settings, settings[::-1], settings, jump_at=jump_at, jump=jump)
    found = Rounds(windows, jumps=True)
    for setting in settings:
        assert found.difference(5, setting).share == pytest.approx(TRUE[setting] - 1, abs=0.003)
    assert found.noise < 0.003
    assert Rounds(windows).noise > 0.02


def test_where_no_jump_is_all_is_as_if_none_was_looked_for():
    random = np.random.default_rng(8)
    for drift in (0.0, 0.05):
        for _ in range(20):
            windows = measured(random, 4, drift=drift, accidents=0.02)
            plain, looked = Rounds(windows), Rounds(windows, jumps=True)
            assert plain.difference(5, 50) == looked.difference(5, 50)


def test_a_jump_of_which_the_round_is_not_clear_leaves_everything_open():
    # Was it before 5 in the first round, or before 1 in the second one?
    windows = in_turn((25, 1, 100, 5, 50), (50, 5, 1, 25), jump_at=7)
    found = Rounds(windows, jumps=True)
    assert found.noise > 0.02
    told = found.difference(5, 1)
    assert told.low / told.base < 0.1 < told.high / told.base
    later = in_turn((25, 1, 100, 5, 50), (50, 5, 1, 25), (25, 1, 5, 50), jump_at=7)
    assert Rounds(later, jumps=True).difference(5, 1).share == pytest.approx(0.1, abs=0.003)


def test_settings_without_a_round_in_common_are_compared_by_way_of_others():
    random = np.random.default_rng(4)
    only = {(100, 0), (100, 1), (1, 2), (1, 3)}
    found = Rounds(measured(random, 4, drift=0.3, left_out=only, spread=0.005))
    assert found.difference(1, 100).share == pytest.approx(1.05 / 1.10 - 1, abs=0.01)
    direct, by_others = found.difference(1, 5), found.difference(1, 100)
    assert by_others.high - by_others.low > direct.high - direct.low


def test_rounds_that_share_nothing_are_taken_as_they_are():
    found = Rounds([Window(1, 0, (2.0,) * 20), Window(2, 1, (3.0,) * 20)])
    assert found.difference(1, 2).share == pytest.approx(0.5)
    assert found.estimate(1).centre == pytest.approx(2)


def test_before_anything_is_repeated_the_noise_is_a_guess_from_inside_the_windows():
    random = np.random.default_rng(6)
    once, twice = Rounds(measured(random, 1)), Rounds(measured(random, 2))
    assert (once.repeated, twice.repeated) == (False, True)
    assert 0.002 < once.noise < 0.03
    assert once.difference(5, 1).beyond_noise
    assert not once.difference(5, 25).beyond_noise


def test_windows_too_short_to_tell_their_noise_leave_everything_open_until_they_are_repeated():
    short = [Window(setting, 0, (float(setting),) * 5) for setting in (1, 2)]
    found = Rounds(short)
    assert found.noise is None
    assert found.difference(1, 2).words() == TOO_FEW
    assert found.difference(1, 2).share == pytest.approx(1)
    assert found.estimate(1).high == math.inf
    assert found.estimate(1).low == 0
    again = Rounds([*short, Window(1, 1, (1.01,) * 5), Window(2, 1, (2.01,) * 5)])
    assert again.noise is not None
    assert again.difference(1, 2).beyond_noise


def test_a_longer_window_weighs_more_but_not_by_all_its_steps():
    windows = [
        Window(1, 0, (1.0,) * 12),
        Window(1, 1, (1.2,) * 1200),
        Window(2, 0, (1.0,) * 12),
        Window(2, 1, (1.0,) * 12),
    ]
    share = math.log(Rounds(windows).estimate(1).centre) / math.log(1.2)
    assert 0.5 < share < 0.75


def test_windows_and_steps_are_counted():
    found = Rounds([Window(1, 0, (1.0,) * 12), Window(1, 1, (1.0,) * 20), Window(2, 0, (1.0,) * 12)])
    assert found.settings == (1, 2)
    assert (found.estimate(1).windows, found.estimate(1).steps) == (2, 32)


def test_more_confidence_takes_a_wider_interval():
    found = Rounds(measured(np.random.default_rng(1), 3))
    usual, sure = found.difference(5, 50), found.difference(5, 50, confidence=0.999)
    assert sure.low < usual.low < usual.change < usual.high < sure.high


@pytest.mark.parametrize(
    "windows", [[], [Window(1, 0, ())], [Window(1, 0, (1.0, 0.0))], [Window(1, 0, (math.nan,))]]
)
def test_windows_without_figures_are_refused(windows):
    with pytest.raises(ValueError, match="at least one step"):
        Rounds(windows)


def test_a_setting_that_was_not_measured_is_unknown():
    found = Rounds([Window(1, 0, (1.0,) * 12)])
    for ask in (lambda: found.estimate(2), lambda: found.difference(1, 2)):
        with pytest.raises(KeyError):
            ask()
