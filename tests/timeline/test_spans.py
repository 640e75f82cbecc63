import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline import spans

from .strategies import offsets_ns, origins_ns, raw_pairs, shifted, ticks


def canonical(array):
    """Whether an array keeps every promise that the module makes of its results."""
    flat = array.ravel()
    return (
        array.dtype == np.int64
        and array.ndim == 2
        and array.shape[1] == 2
        and array.flags.c_contiguous
        and bool((flat[:-1] < flat[1:]).all())
    )


@given(raw_pairs, origins_ns)
def test_any_pairs_become_canonical_spans_that_cover_the_same_ns(pairs, origin_ns):
    made = spans.from_pairs(shifted(pairs, origin_ns))
    assert canonical(made)
    assert ticks(made, origin_ns) == ticks(pairs)
    assert spans.length_ns(made) == len(ticks(pairs))
    unsigned = made.astype(np.uint64) if origin_ns >= 0 and not (made < 0).any() else made
    np.testing.assert_array_equal(spans.from_pairs(unsigned), made, err_msg="as CUPTI writes them")


@pytest.mark.parametrize("few", [0, spans.FEW])
@given(raw_pairs, raw_pairs, origins_ns)
def test_set_operations_are_those_of_the_covered_ns(few, a, b, origin_ns):
    in_a = spans.from_pairs(shifted(a, origin_ns))
    in_b = spans.from_pairs(shifted(b, origin_ns))
    expected_of = {
        spans.union: ticks(a) | ticks(b),
        spans.intersection: ticks(a) & ticks(b),
        spans.difference: ticks(a) - ticks(b),
    }
    for operation, expected in expected_of.items():
        with mock.patch.object(spans, "FEW", few):
            result = operation(in_a, in_b)
        assert canonical(result)
        assert ticks(result, origin_ns) == expected


@given(raw_pairs, offsets_ns, offsets_ns, origins_ns)
def test_clip_keeps_the_ns_between_its_bounds(pairs, start_ns, end_ns, origin_ns):
    made = spans.from_pairs(shifted(pairs, origin_ns))
    before = made.copy()
    clipped = spans.clip(made, start_ns + origin_ns, end_ns + origin_ns)
    assert canonical(clipped)
    assert ticks(clipped, origin_ns) == ticks(pairs) & set(range(start_ns, end_ns))
    clipped[:] = 0
    np.testing.assert_array_equal(made, before, err_msg="a clip is a copy")


@given(raw_pairs, raw_pairs, origins_ns)
def test_the_lengths_within_intervals_are_those_of_clips(pairs, within, origin_ns):
    made, bounds = (spans.from_pairs(shifted(each, origin_ns)) for each in (pairs, within))
    lengths = spans.lengths_within(made, bounds[:, 0], bounds[:, 1]).tolist()
    assert lengths == [spans.length_ns(spans.clip(made, *each)) for each in bounds.tolist()]
    assert spans.lengths_within(made, bounds[:, 1], bounds[:, 0]).tolist() == [0] * len(bounds)


@given(raw_pairs, st.integers(1, 8), origins_ns)
def test_coalesced_spans_are_few_and_add_the_smallest_gaps(pairs, at_most, origin_ns):
    made = spans.from_pairs(shifted(pairs, origin_ns))
    result = spans.coalesce(made, at_most)
    assert canonical(result)
    assert len(result) == min(at_most, len(made))
    assert ticks(made, origin_ns) <= ticks(result, origin_ns)
    gaps_ns = sorted((made[1:, 0] - made[:-1, 1]).tolist())
    closed_ns = sum(gaps_ns[: len(made) - len(result)])
    assert spans.length_ns(result) == spans.length_ns(made) + closed_ns


@st.composite
def nested_calls(draw, begin=0, end=40, depth=0):
    """Bounds of calls as a thread makes them: one holds another, or they have no time in common."""
    calls, at = [], begin
    while depth < 4 and at < end and draw(st.booleans()):
        start = draw(st.integers(at, end))
        at = draw(st.integers(start, end))
        calls += [(start, at), *draw(nested_calls(start, at, depth + 1))]
    return calls


def pieces_of(calls, origin_ns=0):
    bounds = np.array(calls, dtype=np.int64).reshape(-1, 2) + origin_ns
    made = spans.innermost(bounds[:, 0], bounds[:, 1])
    made[:, :2] -= origin_ns
    return made.tolist()


@given(nested_calls().flatmap(st.permutations), origins_ns)
def test_each_moment_belongs_to_the_innermost_call(calls, origin_ns):
    pieces = pieces_of(calls, origin_ns)
    found = {tick: calls[index] for start, end, index in pieces for tick in range(start, end)}
    shortest_last = sorted(calls, key=lambda call: call[0] - call[1])
    assert found == {tick: call for call in shortest_last for tick in range(*call)}
    assert all(start < end for start, end, _ in pieces)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))


def test_a_call_that_outlasts_the_one_around_it_is_cut_off():
    assert pieces_of([(0, 10), (5, 15), (12, 13)]) == [[0, 5, 0], [5, 10, 1], [12, 13, 2]]
