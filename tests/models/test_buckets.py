import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import _compute_bucket_assignment_by_size

from overlaptop.models.buckets import bucket_sizes

sizes_lists = st.lists(st.integers(1, 30), min_size=1, max_size=25)
caps = st.integers(1, 120)


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
