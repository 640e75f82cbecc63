import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.stats.noise import CONFIDENCE, FEWEST, Difference, between, both, estimate, two_sided
from tests.stats.series import by_a_host_that_runs_ahead, correlated, difference


def alarms(steps, phi, trials=400, change=1.0, **how):
    """In what share of pairs of windows a difference is told; the second takes `change` times as long."""
    random = np.random.default_rng(7)
    before, after = (correlated(random, steps, phi, trials=trials, **how) for _ in range(2))
    return sum(difference(*pair).beyond_noise for pair in zip(before, after * change, strict=True)) / trials


@pytest.mark.parametrize("steps", [24, 60, 300])
@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.5, 0.8])
@pytest.mark.parametrize("how", [{}, {"outliers": 0.03}, {"outliers": 0.02, "tails": True}], ids=str)
def test_of_a_hundred_windows_that_do_not_differ_about_five_are_said_to(steps, phi, how):
    # 400 trials of 5 % lie between 2.9 and 7.5 % nineteen times in twenty; what is above that is the price
    # of short windows whose steps hang together.
    assert alarms(steps, phi, **how) <= (0.10 if phi == 0.8 else 0.085)


@pytest.mark.parametrize(
    ("steps", "phi", "change"), [(30, 0.0, 0.95), (60, 0.5, 0.97), (200, 0.8, 0.96), (500, 0.5, 1.01)]
)
def test_real_differences_are_found(steps, phi, change):
    assert alarms(steps, phi, change=change, outliers=0.02, trials=200) > 0.75


def test_an_interval_of_95_percent_holds_the_true_centre_95_times_in_a_hundred():
    random = np.random.default_rng(3)
    held = 0
    for window in correlated(random, 120, phi=0.5, trials=400):
        found = estimate(window)
        held += abs(found.centre - 1) <= found.error * two_sided(CONFIDENCE, found.degrees)
    assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize("period", [2, 10, 25])
def test_steps_that_the_host_mistimes_have_the_right_mean_and_differences_of_it_are_found(period):
    random = np.random.default_rng(5)
    true = correlated(random, 1000, phi=0.0)
    seen = by_a_host_that_runs_ahead(true, period)
    assert np.abs(seen - true).mean() > 0.7  # single steps are worth nothing
    assert estimate(seen).centre == pytest.approx(true.mean(), rel=1e-6)
    found = difference(seen, by_a_host_that_runs_ahead(correlated(random, 1000, phi=0.0) * 0.9, period))
    assert found.beyond_noise
    assert found.share == pytest.approx(-0.1, abs=0.01)


def test_rare_outliers_hardly_move_the_centre_and_frequent_or_regular_ones_count_in_full():
    steady = np.random.default_rng(1).normal(10, 0.1, 200)
    rare, frequent, regular = steady.copy(), steady.copy(), steady.copy()
    rare[[3, 12, 80, 88, 190]] = 500.0
    frequent[[3, 5, 9, 12, 13, 50, 80, 88, 120, 150, 190]] = 500.0
    regular[::40] = 500.0
    assert estimate(rare).centre == pytest.approx(10, rel=0.01)
    assert estimate(frequent).centre == pytest.approx((189 * 10 + 11 * 500) / 200, rel=0.01)
    assert estimate(regular).centre == pytest.approx((195 * 10 + 5 * 500) / 200, rel=0.01)


def test_what_counts_as_an_outlier_is_the_same_on_both_sides():
    few = np.random.default_rng(1).normal(10, 0.1, 200)
    few[[3, 5, 9, 12, 13, 50, 80, 88, 120, 190]] = 110.0  # 10 of 200 are rare
    many = few.copy()
    many[150] = 110.0
    assert estimate(few).centre == pytest.approx(10, rel=0.01)
    before, after = both(few, many)
    assert before.centre == pytest.approx(15, rel=0.01)
    assert after.centre == pytest.approx(15.5, rel=0.01)


def test_too_few_steps_are_no_ground_to_say_anything():
    assert estimate([]) is None
    assert both([], [1.0]) is None
    few = estimate([10.0] * (FEWEST - 1))
    assert (few.centre, few.error) == (10.0, None)
    assert between(few, estimate([20.0] * 100)) is None


@given(st.floats(1e-3, 1e12), st.integers(FEWEST, 100))
def test_figures_that_are_all_alike_are_certain(value, steps):
    found = estimate([value] * steps)
    assert found.error == 0
    assert found.centre == pytest.approx(value)
    assert found.spread == 0
    assert difference([value] * steps, [value] * steps).words() == "the same"
    assert difference([2 * value] * steps, [value] * steps).beyond_noise


@given(st.floats(1e-3, 1e12), st.integers(FEWEST, 100), st.integers(FEWEST, 100))
def test_windows_of_unlike_lengths_whose_figures_are_all_alike_do_not_differ(value, before, after):
    # Their means differ in the last bits.
    found = difference([value] * before, [value] * after)
    assert not found.beyond_noise
    assert found.words("less", "more", points=True) == "the same"


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e15), min_size=FEWEST, max_size=60),
    st.lists(st.floats(0, 1e15), min_size=FEWEST),
)
def test_whatever_the_figures_are_the_interval_holds_the_change_and_the_words_are_words(before, after):
    found = difference(before, after)
    assert found.low <= found.change <= found.high
    assert math.isfinite(found.high - found.low)
    assert found.words()
    assert difference(after, before).change == pytest.approx(-found.change)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Difference(100, -3.1, -3.8, -2.4), "3.1 % shorter (2.4 to 3.8)"),
        (Difference(100, 3.1, 2.4, 3.8), "3.1 % longer (2.4 to 3.8)"),
        (Difference(100, 0.5, -0.7, 1.7), "no difference beyond noise (±1.2 %)"),
        (Difference(100, -16, -33, 1), "no difference beyond noise (±17 %)"),
        (Difference(100, -0.123, -0.135, -0.111), "0.12 % shorter (0.11 to 0.14)"),
        (Difference(100, 1234.0, 1100.0, 1368.0), "1,234 % longer (1,100 to 1,368)"),
        (Difference(8, -4, -4, -4), "50 % shorter"),
        (Difference(8, 0, 0, 0), "the same"),
        (Difference(100, 0.003, 0.002, 0.004), "less than 0.01 % longer"),
        (Difference(100, -0.003, -0.003, -0.003), "less than 0.01 % shorter"),
        (Difference(0, 5, 4, 6), "longer: it was 0"),
        (Difference(0, 5, -4, 14), "no difference beyond noise"),
        (Difference(0, 0, 0, 0), "no difference beyond noise"),
    ],
)
def test_a_difference_in_words(found, words):
    assert found.words() == words


def test_a_difference_of_fractions_is_told_in_points():
    found = Difference(0.5, 0.042, 0.035, 0.049)
    assert found.words("less", "more", points=True) == "4.2 points more (3.5 to 4.9)"
    none = Difference(0.0, -0.001, -0.009, 0.007)
    assert none.words(points=True) == "no difference beyond noise (±0.8 points)"


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [  # from tables of Student's t
        (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 8, 2.306), (0.95, 30, 2.042),
        (0.95, 1e9, 1.962), (0.99, 2, 9.925), (0.999, 1, 636.62), (0.999, 4, 8.610), (0.8, 5, 1.476),
        (0.0, 3, 0.0),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(confidence, degrees, expected):
    assert two_sided(confidence, degrees) == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_students_t_between_whole_degrees_of_freedom_lies_between_theirs():
    assert two_sided(0.95, 4) < two_sided(0.95, 3.57) < two_sided(0.95, 3)
