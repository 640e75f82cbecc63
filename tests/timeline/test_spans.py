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


@pytest.mark.parametrize("few", [0, spans.FEW])
@given(raw_pairs, raw_pairs, origins_ns)
def test_set_operations_are_those_of_the_covered_ns(few, a, b, origin_ns):
    in_a = spans.from_pairs(shifted(a, origin_ns))
    in_b = spans.from_pairs(shifted(b, origin_ns))
    for operation, expected in (
        (spans.union, ticks(a) | ticks(b)),
        (spans.intersection, ticks(a) & ticks(b)),
        (spans.difference, ticks(a) - ticks(b)),
    ):
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


@given(raw_pairs, origins_ns)
def test_length_is_the_number_of_covered_ns(pairs, origin_ns):
    assert spans.length_ns(spans.from_pairs(shifted(pairs, origin_ns))) == len(ticks(pairs))


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


@given(raw_pairs, origins_ns)
def test_flattened_spans_are_plain_ints_in_order(pairs, origin_ns):
    made = spans.from_pairs(shifted(pairs, origin_ns))
    flat = spans.flatten(made)
    assert all(type(t) is int for t in flat)
    np.testing.assert_array_equal(spans.from_bounds(flat[::2], flat[1::2]), made)
    np.testing.assert_array_equal(spans.unflatten(flat), made)


def test_unsigned_times_as_cupti_writes_them_are_taken():
    times = np.array([5, 9, 1, 3], dtype=np.uint64)
    assert spans.flatten(spans.from_bounds(times[::2], times[1::2])) == (1, 3, 5, 9)


@pytest.mark.parametrize(
    ("make", "wrong", "error", "words"),
    [
        (spans.from_pairs, ([1, 2],), ValueError, r"\(n, 2\)"),
        (spans.from_pairs, ([[1, 2, 3]],), ValueError, r"\(n, 2\)"),
        (spans.from_pairs, ([[[1, 2]]],), ValueError, r"\(n, 2\)"),
        (spans.from_pairs, ([[0.0, 1.5]],), TypeError, "whole nanoseconds"),
        (spans.from_pairs, ([["0", "1"]],), TypeError, "whole nanoseconds"),
        (spans.from_bounds, ([1, 2], [3]), ValueError, "as many starts as ends"),
        (spans.unflatten, ((1, 2, 3),), ValueError, "reshape"),
        (spans.coalesce, (spans.empty(), 0), ValueError, "at least 1, not 0"),
    ],
)
def test_what_makes_no_spans_is_refused(make, wrong, error, words):
    with pytest.raises(error, match=words):
        make(*wrong)
