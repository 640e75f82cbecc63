import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.text import Unit, age, byte_count, count, duration, nice_step, ordinal, percent, ratio


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (None, "–"), (0, "0"), (1, "1.00 ns"), (980, "980 ns"), (999.6, "1.00 µs"), (1_000, "1.00 µs"),
        (47_600_000, "47.6 ms"), (999_499_999, "999 ms"), (999_600_000, "1.00 s"),
        (3_200_000_000, "3.20 s"),
        (59_400_000_000, "59.4 s"), (59_600_000_000, "1 m 00 s"), (65_000_000_000, "1 m 05 s"),
        (7_380_000_000_000, "2 h 03 m"), (-1_500_000, "-1.50 ms"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_unit(ns, words):
    assert duration(ns) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (1023, "1.00 KiB"), (1 << 10, "1.00 KiB"),
        (25 << 20, "25.0 MiB"), (1 << 50, "1.00 PiB"),
    ],
)  # fmt: skip
def test_bytes_have_binary_units(size, words):
    assert byte_count(size) == words


def test_unknown_is_a_dash_and_never_zero():
    assert {percent(None), ratio(None), count(None), age(None), duration(None), byte_count(None)} == {"–"}
    assert Unit.for_scale(1).text(None) == "–"


def test_a_figure_too_small_for_its_column_is_not_shown_as_zero():
    unit = Unit.for_scale(200_000_000)
    assert [unit.text(ns) for ns in (0, 1_000, 60_000, 123_456_789)] == ["0.0", "<0.1", "0.1", "123.5"]


def test_other_figures():
    assert percent(0.9412) == "94.1 %"
    assert ratio(1.158) == "1.16×"
    assert count(1284) == "1,284"
    assert [age(0.4), age(59.9), age(130)] == ["0 s", "59 s", "2 m 10 s"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "21st",
        "112th",
    ]


@given(st.integers(1, 10**15))
def test_three_digits_are_never_more_than_half_a_percent_off(ns):
    figure, unit = duration(ns).split(" ", 1) if ns < 59_000_000_000 else ("1", "")
    if unit:
        size = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}[unit]
        assert float(figure) * size == pytest.approx(ns, rel=0.005)
        assert len(figure.replace(".", "")) == 3


@given(st.integers(1, 10**12))
def test_one_unit_serves_a_column_in_at_most_six_characters(longest_ns):
    unit = Unit.for_scale(longest_ns)
    assert len(unit.text(longest_ns)) <= 7
    assert float(unit.text(longest_ns)) * unit.size_ns == pytest.approx(longest_ns, abs=unit.size_ns)


@given(st.floats(1e-3, 1e15), st.integers(1, 40))
def test_axis_steps_are_round_and_few(span, parts):
    tick = nice_step(span, parts)
    assert span / tick <= parts * (1 + 1e-6)
    assert f"{tick:e}"[0] in "125"
