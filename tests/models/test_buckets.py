import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import _compute_bucket_assignment_by_size

from overlaptop.models.buckets import Link, bucket_sizes, even_buckets, fewest, sweep

sizes_lists = st.lists(st.integers(1, 30), min_size=1, max_size=25)
caps = st.integers(1, 120)
links = st.builds(Link, st.floats(0, 1e7), st.floats(1e6, 1e12))
totals, times_ns = st.integers(1, 10**9), st.integers(0, 10**9)


@settings(deadline=None)
@given(sizes_lists, caps, st.none() | caps)
def test_the_layout_is_torchs_own(sizes, cap, first_cap):
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    limits = [cap if first_cap is None else first_cap, cap]
    # With indices given, torch keeps the order: so does the reducer when it rebuilds its buckets.
    buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [], list(range(len(sizes))))
    expected = [sum(sizes[i] for i in bucket) for bucket in buckets]
    assert bucket_sizes(sizes, cap, first_cap) == tuple(expected)


def test_a_layout_ends_whatever_the_cap_and_the_sizes_are():
    assert bucket_sizes([1, 1], 2**80) == (2,)
    assert bucket_sizes([0, 2, 0, 1], 0, -1) == (2, 1)


@settings(deadline=None)
@given(totals, times_ns, links, st.integers(1, 500))
def test_even_buckets_take_what_one_stream_takes_to_send_them(total, backward_ns, link, count):
    found = even_buckets(total, backward_ns, link, -(-total // count))
    each_ns, end_ns, exposed_ns = link.alpha_ns + total / found.count / link.beta_bytes_per_s * 1e9, 0, 0
    for nth in range(found.count):
        start_ns = max(end_ns, backward_ns * (nth + 1) / found.count)
        end_ns = start_ns + each_ns
        exposed_ns += max(0, end_ns - max(start_ns, backward_ns))
    assert found.comm_ns == pytest.approx(found.count * each_ns, rel=1e-9, abs=1)
    assert found.exposed_ns == pytest.approx(exposed_ns, rel=1e-9, abs=2)


def test_the_best_count_of_even_buckets_is_as_calculus_has_it():
    # Sending takes as long as backward or longer: it begins with the first of k buckets, at backward / k,
    # and ends k alpha + bytes / beta later. The least of that is at k = sqrt(backward / alpha).
    backward_ns, link = 10_000_000, Link(1_000, 1e9)
    found = fewest(sweep(20_000_000, backward_ns, link, 1_000), backward_ns, 0.0)
    assert found.count == math.sqrt(backward_ns / link.alpha_ns) == 100
    assert found.exposed_ns == backward_ns / 100 + 100 * 1_000 + 20_000_000 - backward_ns


@settings(deadline=None)
@given(st.integers(1, 5_000), st.integers(1, 60))
def test_sweep_has_each_count_of_buckets_with_its_least_cap(total, grain):
    least_cap_of = {}
    for cap in range(grain, total + 2 * grain, grain):
        least_cap_of.setdefault(-(-total // cap), cap)
    seen = [(each.count, each.cap_bytes) for each in sweep(total, 0, Link(0, 1e9), grain)]
    assert seen == list(least_cap_of.items())


@settings(deadline=None)
@given(st.integers(1, 10**6), times_ns, links, st.just(0.0) | st.floats(0, 0.5))
def test_fewest_buckets_that_are_good_enough_are_taken(total, backward_ns, link, slack):
    every = list(sweep(total, backward_ns, link, -(-total // 300)))
    found = fewest(every, backward_ns, slack)
    limit_ns = (backward_ns + min(each.exposed_ns for each in every)) * (1 + slack)
    assert backward_ns + found.exposed_ns <= limit_ns
    fewer = [each for each in every if each.count < found.count]
    assert all(backward_ns + each.exposed_ns > limit_ns for each in fewer)


def test_more_than_104_days_of_communication_are_refused():
    with pytest.raises(ValueError, match="104 days"):
        even_buckets(10**15, 0, Link(0, 1e-3), 1)
