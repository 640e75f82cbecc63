import numpy as np
import pytest

from overlaptop.models.slowdown import slowdown

MS = 1_000_000
HIDDEN_MS = (5, 20, 35, 50, 65)


def setting(random, hidden_ms, factor, steps=40, alone_ms=100, noise=0.02):
    backward = (alone_ms + factor * hidden_ms) * (1 + noise * random.normal(size=steps))
    hidden = hidden_ms * (1 + noise * random.normal(size=steps))
    return [round(ns) for ns in backward * MS], [round(ns) for ns in hidden * MS]


@pytest.mark.parametrize("factor", [0.3, 1.0])
def test_the_factor_and_what_backward_takes_alone_come_back(factor):
    random = np.random.default_rng(1)
    found = slowdown(setting(random, hidden, factor) for hidden in HIDDEN_MS)
    assert found.factor == pytest.approx(factor, abs=0.1)
    assert found.alone_ns == pytest.approx(100 * MS, rel=0.03)
    assert found.settings == 5
    assert 0 < found.error < 0.1


def test_noise_alone_is_hardly_ever_taken_for_a_slowdown():
    random = np.random.default_rng(2)
    found = [slowdown(setting(random, hidden, 0.0) for hidden in HIDDEN_MS) for _ in range(200)]
    assert sum(each is not None for each in found) <= 4


def test_few_settings_or_several_that_hide_as_much_tell_nothing():
    random = np.random.default_rng(3)
    assert slowdown([]) is None
    assert slowdown(setting(random, hidden, 1.0) for hidden in (5, 30, 60)) is None
    assert slowdown(setting(random, hidden, 1.0) for hidden in (30, 30, 31, 31, 32)) is None


def test_settings_with_too_few_steps_do_not_count():
    random = np.random.default_rng(4)
    assert slowdown(setting(random, hidden, 1.0, steps=6) for hidden in HIDDEN_MS) is None


def test_what_is_larger_than_communication_could_do_is_something_else():
    random = np.random.default_rng(5)
    assert slowdown(setting(random, hidden, 4.0) for hidden in HIDDEN_MS) is None


def test_settings_that_drifted_off_the_line_make_it_less_sure_or_leave_nothing_sure():
    random = np.random.default_rng(6)
    straight = slowdown(setting(random, hidden, 1.0) for hidden in HIDDEN_MS)
    drifted = slowdown(
        setting(random, hidden, 1.0, alone_ms=100 + drift)
        for hidden, drift in zip(HIDDEN_MS, (0, 4, -4, 4, 0), strict=True)
    )
    assert drifted.error > 1.5 * straight.error
    drifts = zip(HIDDEN_MS, (0, 25, -25, 25, -25), strict=True)
    assert slowdown(setting(random, hidden, 1.0, alone_ms=100 + drift) for hidden, drift in drifts) is None
