"""Averages of a list without one of its values."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline.averages import median_without


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9), st.data())
def test_median_of_the_others_is_without_the_value(values, data):
    value = data.draw(st.sampled_from(values))
    others = list(values)
    others.remove(value)
    assert median_without(sorted(values), value) == median(others)
