import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop import text
from overlaptop.text import AT_LEAST, AT_MOST, Unit, bounded, duration, named_ranks, nice_step


@pytest.mark.parametrize(
    ("write", "written"),
    [
        (duration, {
            None: "–", 0: "0", 1: "1.00 ns", 980: "980 ns", 999.6: "1.00 µs", 1_000: "1.00 µs",
            47_600_000: "47.6 ms", 999_499_999: "999 ms", 999_600_000: "1.00 s", 3_200_000_000: "3.20 s",
            59_400_000_000: "59.4 s", 59_600_000_000: "1 m 00 s", 65_000_000_000: "1 m 05 s",
            7_380_000_000_000: "2 h 03 m", -1_500_000: "-1.50 ms",
        }),
        (text.byte_count, {
            None: "–", 0: "0 B", 999: "999 B", 1023: "1.00 KiB", 1 << 10: "1.00 KiB", 25 << 20: "25.0 MiB",
            1 << 50: "1.00 PiB",
        }),
        (text.gigabytes_per_s, {
            None: "–", 0: "0", 1: "<0.01", 10**7: "0.01", 1_200_000_000: "1.20", 28_100_000_000: "28.1",
            281_000_000_000: "281", 1_800_000_000_000: "1800",
        }),
        (text.rate, {None: "–", 281_000_000_000: "281 GB/s"}),
        (text.percent, {None: "–", 0.9412: "94.1 %"}),
        (text.whole_percent, {None: "–", 0.0: "0 %", 0.001: "<1 %", 0.594: "59 %", 1.0: "100 %"}),
        (text.ratio, {None: "–", 1.158: "1.16×"}),
        (text.count, {None: "–", 1284: "1,284"}),
        (text.watts, {None: "–", 617_900: "618 W"}),
        (text.age, {None: "–", 0.4: "0 s", 59.9: "59 s", 130: "2 m 10 s"}),
        (text.ordinal, {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 21: "21st", 112: "112th"}),
        (lambda number: text.plural(number, "rank"), {0: "0 ranks", 1: "1 rank", 2000: "2,000 ranks"}),
        (Unit.for_scale(200_000_000).text, {
            None: "–", 0: "0.0", 1_000: "<0.1", 60_000: "0.1", 123_456_789: "123.5",
        }),
    ],
)  # fmt: skip
def test_quantities_have_three_digits_and_a_unit_or_a_dash(write, written):
    assert {value: write(value) for value in written} == written


@pytest.mark.parametrize(
    ("sign", "figures"),
    [
        (AT_LEAST, {"–": "–", "0.0": "≥0.0", "<0.1": "≥0.0", "3.20 ms": "≥3.20 ms"}),
        (AT_MOST, {"–": "–", "<1 %": "<1 %", "94.1 %": "≤94.1 %"}),
    ],
)
def test_a_bound_has_one_sign(sign, figures):
    assert {figure: bounded(figure, sign, exact=False) for figure in figures} == figures
    assert bounded("<0.1", sign, exact=True) == "<0.1"


@given(st.integers(1, 58_999_999_999))
def test_three_digits_are_never_more_than_half_a_percent_off(ns):
    figure, unit = duration(ns).split(" ", 1)
    assert float(figure) * {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}[unit] == pytest.approx(
        ns, rel=0.005
    )
    assert len(figure.replace(".", "")) == 3


@given(st.integers(1, 10**12))
def test_one_unit_serves_a_column_in_at_most_seven_characters(longest_ns):
    unit = Unit.for_scale(longest_ns)
    assert len(unit.text(longest_ns)) <= 7
    assert float(unit.text(longest_ns)) * unit.size_ns == pytest.approx(longest_ns, abs=unit.size_ns)


@given(st.floats(1e-3, 1e15), st.integers(1, 40))
def test_axis_steps_are_round_and_few(span, parts):
    tick = nice_step(span, parts)
    assert span / tick <= parts * (1 + 1e-6)
    assert f"{tick:e}"[0] in "125"


def test_many_runs_of_ranks_are_named_in_part_and_counted():
    assert named_ranks([64, *range(66, 72)]) == "ranks 64, 66-71"
    assert named_ranks(range(0, 14, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12"
    assert named_ranks(range(0, 1024, 2)) == "ranks 0, 2, 4, 6, 8, 10 and 506 more"
