import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.models.ready_times import Ready, curve


def at(share, *seen):
    return float(np.interp(share, *curve(seen)))


def test_without_anything_known_gradients_become_ready_evenly_over_backward():
    assert [at(share) for share in (0, 0.25, 1)] == [0, 0.25, 1]


def test_between_buckets_that_started_when_they_were_ready_the_bytes_decide():
    seen = Ready(0.5, 0.2, True), Ready(1.0, 0.9, True)
    assert at(0.5, *seen) == pytest.approx(0.2)
    assert at(0.25, *seen) == pytest.approx(0.1)
    assert at(0.75, *seen) == pytest.approx(0.55)
    assert at(1.0, *seen) == pytest.approx(0.9)


def test_of_one_bucket_the_median_counts():
    assert at(0.5, Ready(0.5, 0.2, True), Ready(0.5, 0.3, True), Ready(0.5, 0.99, True)) == pytest.approx(
        0.3
    )


def test_a_bucket_that_had_to_wait_only_says_by_when_it_was_ready():
    first = Ready(0.25, 0.1, True)
    assert at(0.5, first, Ready(0.5, 0.3, False)) == pytest.approx(0.3)  # evenly it would be 0.4
    assert at(0.5, first, Ready(0.5, 0.8, False)) == pytest.approx(0.4)


def test_the_end_of_backward_is_the_latest():
    assert at(1.0, Ready(1.0, 1.4, False)) == 1
    assert at(1.0, Ready(1.0, 1.4, True)) == 1


def test_starts_that_contradict_each_other_meet_in_the_middle():
    assert at(0.5, Ready(0.4, 0.5, True), Ready(0.5, 0.3, True)) == pytest.approx(0.4)


shares = st.floats(0.001, 1)
times = st.floats(0, 2)


@given(st.lists(st.builds(Ready, shares, times, st.booleans()), max_size=30))
def test_whatever_is_seen_the_curve_rises_from_nothing_to_backwards_end_at_most(seen):
    x, y = curve(seen)
    assert x[0] == 0
    assert x[-1] == 1
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) >= 0).all()
    assert y[0] >= 0
    assert y[-1] <= 1
