"""The values that a search may choose from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.tuning.space import Space, default_range
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob


def test_a_ladder_goes_up_by_even_factors_from_end_to_end():
    assert Space(range(1, 401)).ladder(7, 20) == [1, 3, 7, 20, 54, 147, 400]


def test_the_given_value_takes_the_place_of_the_rung_next_to_it():
    assert Space(range(1, 401)).ladder(7, 25) == [1, 3, 7, 25, 54, 147, 400]
    assert Space(range(1, 401)).ladder(7, 1000) == [1, 3, 7, 20, 54, 147, 400, 1000]


def test_few_values_are_all_on_the_ladder():
    assert Space(range(5)).ladder(7, 2) == [0, 1, 2, 3, 4]


def test_above_the_value_from_which_on_nothing_changes_there_is_no_rung():
    space = Space(range(1, 401), lambda value: min(value, 37))
    assert space.most == 37
    assert space.ladder(5, 4)[-1] == 37


def test_a_given_value_stands_for_what_does_the_same():
    space = Space(range(1, 401), lambda value: value // 100)
    assert 250 in space.ladder(7, 250)
    assert sum(value // 100 == 2 for value in space.ladder(7, 250)) == 1


@given(st.integers(-50, 50), st.integers(1, 500), st.integers(0, 1000))
def test_near_gives_the_value_whose_position_is_nearest(least, count, at):
    values = range(least, least + count)
    space = Space(values)
    low, high = space.position(values[0]), space.position(values[-1])
    position = low + (high - low) * at / 1000
    found = space.near(position)
    assert found in values
    assert abs(space.position(found) - position) == min(abs(space.position(v) - position) for v in values)


def test_a_knob_gives_what_it_allows_within_a_range():
    knob = Knob("depth", 1, "1", "1", 0, 4)
    assert Space.of(knob, 0, 3).ladder(9, 1) == [0, 1, 2, 3]
    choices = Knob("accumulation", 4, "4", "4", 1, 16, choices=(8, 4, 1))
    assert Space.of(choices, 2, 16).ladder(9, 4) == [4, 8]
    with pytest.raises(ValueError, match="accumulation allows no value from 9 to 16"):
        Space.of(choices, 9, 16)
    for least, most in ((-1, 3), (1, 5), (5, 9)):
        with pytest.raises(ValueError, match="depth must be from 0 to 4"):
            Space.of(knob, least, most)


def test_what_is_searched_unless_asked_otherwise_lies_within_what_is_allowed():
    bucket = Knob(BUCKET_CAP_MB, 25, "25", "25", 1, 10_000)
    assert default_range(bucket) == (1, 400)
    assert default_range(replace(bucket, least=4, most=60)) == (4, 60)
    assert default_range(Knob("depth", 1, "1", "1", 0, 4)) == (0, 4)
