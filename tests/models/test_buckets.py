import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import _compute_bucket_assignment_by_size

from overlaptop.models.alpha_beta import LARGEST, AlphaBeta
from overlaptop.models.buckets import (
    MIB,
    Compute,
    EvenGradients,
    GradientList,
    best,
    predict,
    sweep,
)

sizes_lists = st.lists(st.integers(1, 30), min_size=1, max_size=25)
caps = st.integers(1, 120)
links = st.builds(AlphaBeta, st.floats(0, 40), st.floats(2e8, 1e10))


@st.composite
def backwards(draw):
    """Gradients with their ready times, as lists, in the reducer's order, which need not be theirs."""
    sizes = draw(sizes_lists)
    ready = draw(st.lists(st.integers(0, 300), min_size=len(sizes), max_size=len(sizes)))
    compute = Compute(
        max(ready) + draw(st.integers(0, 50)), draw(st.integers(0, 9)), draw(st.integers(0, 9))
    )
    return sizes, ready, compute


def simulated(sizes, ready, compute, link, cap, first_cap):
    """The step ns by ns: gradients come, buckets close, one stream sends them in order."""
    open_bucket, queue, closed = [], [], 0
    for nth, size in enumerate(sizes):
        open_bucket.append((size, ready[nth]))
        limit = first_cap if closed == 0 else cap
        if sum(size for size, _ in open_bucket) >= limit or nth == len(sizes) - 1:
            queue.append(open_bucket)
            open_bucket, closed = [], closed + 1
    now, left, spans, hidden, exposed = 0, 0, [], 0, 0
    waiting = list(queue)
    while True:
        while left == 0 and waiting and all(at <= now for _, at in waiting[0]):
            left = int(link.duration_ns(sum(size for size, _ in waiting.pop(0))))
            spans.append([now, now + left])
        if left == 0 and not waiting and now >= compute.backward_ns:
            break
        if left:
            hidden, exposed = (hidden + 1, exposed) if now < compute.backward_ns else (hidden, exposed + 1)
            left -= 1
        now += 1
    return {
        "bytes": [sum(size for size, _ in bucket) for bucket in queue],
        "spans": spans,
        "hidden": hidden,
        "exposed": exposed,
        "step": compute.forward_ns + now + compute.optimizer_ns,
    }


@settings(deadline=None)
@given(backwards(), links, caps, st.none() | caps)
def test_a_prediction_is_what_a_simulation_of_every_ns_finds(backward, link, cap, first_cap):
    sizes, ready, compute = backward
    found = predict(GradientList(sizes, ready), compute, link, cap, first_cap)
    true = simulated(sizes, ready, compute, link, cap, cap if first_cap is None else first_cap)
    assert found.buckets.size_bytes.tolist() == true["bytes"]
    assert np.stack((found.start_ns, found.end_ns), axis=1).tolist() == true["spans"]
    assert (found.hidden_ns, found.exposed_ns, found.step_ns) == (
        true["hidden"], true["exposed"], true["step"]
    )  # fmt: skip
    assert found.bucket_exposed_ns.tolist() == [
        max(0, end - max(start, compute.backward_ns)) for start, end in true["spans"]
    ]
    assert found.hidden_ns + found.exposed_ns == found.comm_ns


@settings(deadline=None)
@given(sizes_lists, caps, st.none() | caps)
def test_the_layout_is_torchs_own(sizes, cap, first_cap):
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    limits = [cap if first_cap is None else first_cap, cap]
    # With indices given, torch keeps the order: so does the reducer when it rebuilds its buckets.
    buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [], list(range(len(sizes))))
    found = GradientList(sizes, [0] * len(sizes)).buckets(cap, first_cap)
    assert found.size_bytes.tolist() == [sum(sizes[i] for i in bucket) for bucket in buckets]


def test_four_gradients_by_hand():
    # Two buckets of 3 + 2 and 2 + 3 bytes, 10 ns each: 5 + 1 a byte.
    gradients, link = GradientList([3, 2, 2, 3], [4, 10, 15, 20]), AlphaBeta(5, 1e9)
    found = predict(gradients, Compute(backward_ns=24, forward_ns=7, optimizer_ns=2), link, cap_bytes=4)
    assert found.buckets.size_bytes.tolist() == [5, 5]
    assert found.buckets.ready_ns.tolist() == [10, 20]
    assert found.start_ns.tolist() == [10, 20]
    assert found.end_ns.tolist() == [20, 30]
    assert found.bucket_exposed_ns.tolist() == [0, 6]
    assert (found.comm_ns, found.hidden_ns, found.exposed_ns) == (20, 14, 6)
    assert found.step_ns == 7 + 30 + 2


# Gradients of which only the sum is known


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(0, 500), caps, st.none() | caps)
def test_even_gradients_make_as_many_buckets_as_ones_of_a_byte_and_all_alike(
    total, backward_ns, cap, first_cap
):
    gradients = EvenGradients(total, backward_ns)
    even = gradients.buckets(cap, first_cap)
    listed = GradientList([1] * total, [0] * total).buckets(cap, first_cap)
    sizes = even.size_bytes.tolist()
    assert (len(sizes), sum(sizes)) == (len(listed.size_bytes), total)
    if first_cap is not None:
        assert sizes[0] == min(first_cap, total)
    alike = sizes if first_cap is None else sizes[1:]
    assert max(alike, default=0) - min(alike, default=0) <= 1
    assert max(alike, default=0) <= cap
    at = np.cumsum(sizes) / total * backward_ns
    assert np.abs(even.ready_ns - at).max() <= 0.5
    assert even.ready_ns[-1] == gradients.ready_at_ns() == backward_ns


@settings(deadline=None)
@given(
    st.integers(1, 10**9),
    st.integers(0, 10**9),
    st.integers(1, 500),
    st.floats(0, 1e7),
    st.floats(1e6, 1e12),
)
def test_the_step_of_even_buckets_is_as_its_formula_has_it(total, backward_ns, count, alpha_ns, beta):
    cap = -(-total // count)
    found = predict(EvenGradients(total, backward_ns), Compute(backward_ns), AlphaBeta(alpha_ns, beta), cap)
    k, all_ns = len(found.end_ns), total / beta * 1e9
    never_idle_ns = backward_ns / k + k * alpha_ns + all_ns
    keeps_up_ns = backward_ns + alpha_ns + all_ns / k
    # Buckets differ by a byte, and each time is rounded to a ns.
    slack_ns = 1e9 / beta + backward_ns / total + k + 1
    assert found.step_ns == pytest.approx(max(never_idle_ns, keeps_up_ns), rel=1e-9, abs=slack_ns)


def test_the_best_count_of_even_buckets_is_as_calculus_has_it():
    # Sending takes as long as backward or longer: it begins with the first of k buckets, at backward / k,
    # and ends k alpha + bytes / beta later. The least of that is at k = sqrt(backward / alpha).
    backward_ns, link = 10_000_000, AlphaBeta(1_000, 1e9)
    found = best(
        sweep(EvenGradients(20_000_000, backward_ns), Compute(backward_ns), link,
              lowest_bytes=10_000, highest_bytes=20_000_000, grain_bytes=1_000)
    )  # fmt: skip
    assert len(found.end_ns) == math.sqrt(backward_ns / link.alpha_ns) == 100
    assert found.step_ns == backward_ns / 100 + 100 * 1_000 + 20_000_000


# All bucket sizes


@settings(deadline=None)
@given(backwards(), links, st.integers(1, 20), st.integers(0, 120), st.integers(1, 9), st.none() | caps)
def test_a_sweep_finds_each_layout_of_the_range_once(backward, link, lowest, more, grain, first_cap):
    sizes, ready, compute = backward
    gradients = GradientList(sizes, ready)
    seen = list(
        sweep(gradients, compute, link, lowest_bytes=lowest, highest_bytes=lowest + more,
              grain_bytes=grain, first_cap_bytes=first_cap)
    )  # fmt: skip
    lowest_cap_of = {}
    for cap in range(lowest, lowest + more + 1, grain):
        layout = tuple(gradients.buckets(cap, first_cap).size_bytes.tolist())
        lowest_cap_of.setdefault(layout, cap)
    assert [tuple(each.buckets.size_bytes.tolist()) for each in seen] == list(lowest_cap_of)
    assert [each.cap_bytes for each in seen] == list(lowest_cap_of.values())


@settings(deadline=None)
@given(backwards(), links, st.just(0.0) | st.floats(0, 0.5))
def test_with_slack_the_best_has_the_fewest_buckets_of_all_that_are_good_enough(backward, link, slack):
    sizes, ready, compute = backward
    gradients = GradientList(sizes, ready)
    of_all = list(sweep(gradients, compute, link, lowest_bytes=1, highest_bytes=sum(sizes), grain_bytes=1))
    found = best(of_all, slack)
    limit_ns = min(each.step_ns for each in of_all) * (1 + slack)
    assert found.step_ns <= limit_ns
    fewer = [each for each in of_all if len(each.end_ns) < len(found.end_ns)]
    assert all(each.step_ns > limit_ns for each in fewer)
    as_many = [each for each in of_all if len(each.end_ns) == len(found.end_ns)]
    assert found.step_ns == min(each.step_ns for each in as_many)


def test_even_gradients_have_a_layout_for_each_count_of_buckets():
    gradients, compute = EvenGradients(10 * MIB, 0), Compute(0)
    seen = list(sweep(gradients, compute, AlphaBeta(0, 1e9), lowest_bytes=MIB, highest_bytes=99 * MIB))
    assert [(each.cap_bytes // MIB, len(each.end_ns)) for each in seen] == [
        (1, 10), (2, 5), (3, 4), (4, 3), (5, 2), (10, 1)
    ]  # fmt: skip


# Bad input


@pytest.mark.parametrize(
    ("sizes", "ready", "error"),
    [
        ([], [], ValueError),
        ([1, 2], [1], ValueError),
        ([0], [1], ValueError),
        ([1], [-1], ValueError),
        ([1], [LARGEST], ValueError),
        ([2**62, 2**62], [1, 1], ValueError),
        ([1.5], [1], TypeError),
        ([1], [1.5], TypeError),
    ],
)
def test_what_are_no_gradients_is_refused(sizes, ready, error):
    with pytest.raises(error):
        GradientList(sizes, ready)


def test_what_makes_no_sense_is_refused_with_its_reason():
    gradients, link = GradientList([1, 1], [0, 9]), AlphaBeta(0, 1e9)
    with pytest.raises(ValueError, match="ready 9 ns after backward began, which takes 8 ns"):
        predict(gradients, Compute(8), link, 1)
    for cap, first_cap in ((0, None), (1, 0), (-1, 5)):
        with pytest.raises(ValueError, match="1 byte or more"):
            predict(gradients, Compute(9), link, cap, first_cap)
        with pytest.raises(ValueError, match="1 byte or more"):
            EvenGradients(8, 8).buckets(cap, first_cap)
    with pytest.raises(ValueError, match="104 days"):
        predict(gradients, Compute(9), AlphaBeta(0, 1e-9), 1)
    with pytest.raises(ValueError, match="more than 1,000,000"):
        EvenGradients(2**50, 0).buckets(1)
    with pytest.raises(ValueError, match="backward_ns must be"):
        Compute(-1)
    for total, backward_ns in ((0, 1), (2**53, 1), (1, -1), (1, LARGEST)):
        with pytest.raises(ValueError, match=r"gradients must|backward must"):
            EvenGradients(total, backward_ns)
    for lowest, highest, grain in ((0, 5, 1), (6, 5, 1), (1, 5, 0)):
        with pytest.raises(ValueError, match="no bucket size lies"):
            next(sweep(gradients, Compute(9), link, lowest_bytes=lowest, highest_bytes=highest,
                       grain_bytes=grain))  # fmt: skip


def test_a_cap_far_beyond_all_gradients_is_one_bucket():
    found = predict(GradientList([1, 1], [0, 1]), Compute(1), AlphaBeta(0, 1e9), 2**80)
    assert found.buckets.size_bytes.tolist() == [2]
    assert EvenGradients(7, 1).buckets(2**80).size_bytes.tolist() == [7]
