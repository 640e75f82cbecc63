import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline.nesting import innermost

from .strategies import origins_ns


@st.composite
def nested_calls(draw, begin=0, end=40, depth=0):
    """Bounds of calls as a thread makes them: one holds another, or they have no time in common."""
    calls, at = [], begin
    while depth < 4 and at < end and draw(st.booleans()):
        start = draw(st.integers(at, end))
        at = draw(st.integers(start, end))
        calls.append((start, at))
        calls += draw(nested_calls(start, at, depth + 1))
    return calls


def at_each_tick(calls):
    """By tick, the call that is in no other one's way there: the shortest around it."""
    found = {}
    for index, (start, end) in sorted(enumerate(calls), key=lambda each: each[1][0] - each[1][1]):
        found.update(dict.fromkeys(range(start, end), index))
    return found


def pieces_of(calls, origin_ns=0):
    bounds = np.array(calls, dtype=np.int64).reshape(-1, 2) + origin_ns
    made = innermost(bounds[:, 0], bounds[:, 1])
    made[:, :2] -= origin_ns
    return made.tolist()


@given(nested_calls().flatmap(st.permutations), origins_ns)
def test_each_moment_belongs_to_the_innermost_call(calls, origin_ns):
    pieces = pieces_of(calls, origin_ns)
    found = {tick: index for start, end, index in pieces for tick in range(start, end)}
    expected = at_each_tick(calls)
    assert found.keys() == expected.keys()
    assert {tick: calls[index] for tick, index in found.items()} == {
        tick: calls[index] for tick, index in expected.items()
    }
    assert all(start < end for start, end, _ in pieces)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))


def test_a_call_that_outlasts_the_one_around_it_is_cut_off():
    assert pieces_of([(0, 10), (5, 15), (12, 13)]) == [[0, 5, 0], [5, 10, 1], [12, 13, 2]]
