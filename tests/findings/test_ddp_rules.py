"""What of DDP's settings keeps a job from hiding its reductions."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.findings.buckets import Model
from overlaptop.findings.exposure import exposure
from overlaptop.findings.find import find
from tests.fleet.builders import info

from .jobs import rules, the
from .timelines import MIB, MS, PHASES, Timeline, call, commanded, gradients, job, knobs


def reduced(calls, compute=((0, 80), (90, 100)), copies=(), fused=()):
    """A job whose all-reduces are these, each as start, end and MiB, in a backward from 20 to 90 ms."""
    made = tuple(call("allreduce_", *each) for each in calls)
    return lambda rank, number: Timeline(100, compute, made, copies, PHASES, fused)


def ddp(cap_mib, sizes_mib, **flags):
    """A model with these gradients and this size of buckets."""
    flags = {
        "gradient_as_bucket_view": True,
        "find_unused_parameters": False,
        "static_graph": False,
    } | flags
    return gradients(sizes_mib, **flags), knobs(bucket_cap_mb=cap_mib)


HEALTHY = reduced([(30, 34, 1), (40, 50, 25), (52, 62, 25), (64, 74, 25), (76, 81, 12)])


def test_small_exposed_rests_of_ddp_raise_nothing():
    assert find(job(HEALTHY, *ddp(25, [25] * 4))) == ()


def test_buckets_that_take_their_latency_are_too_small():
    # 2 ms and 1 ms a MiB: of 66 ms, 42 are latency.
    calls = [(22 + 3 * at, 25 + 3 * at, 1) for at in range(20)] + [(82, 88, 4)]
    small = partial(job, reduced(calls, compute=((0, 60), (90, 100))), *ddp(1, [1] * 24))
    evidence = small()
    found = the(evidence, "bucket_too_small")
    assert found.gain_ns <= exposure(evidence).exposed_transfer_ns
    line = found.advice
    assert line.startswith("DistributedDataParallel(model, bucket_cap_mb=")
    assert "a latency of 2.00 ms each" in found.measured
    by_command = the(small(*commanded(bucket_cap_mb=1)), "bucket_too_small").advice
    assert by_command.startswith(f"{line}; to try it now: overlaptop set bucket_cap_mb=")
    one_refuses = [*commanded(bucket_cap_mb=1), info(1, control_allowed=False)]
    assert the(small(*one_refuses), "bucket_too_small").advice == line


@given(
    st.integers(1, 10**9), st.integers(0, 10**9), st.floats(0, 1e7), st.floats(0, 100), st.integers(1, 500)
)
def test_even_buckets_take_what_one_stream_takes_to_send_them(total, backward_ns, alpha_ns, rate, count):
    model = Model(total, backward_ns, alpha_ns, rate)
    each_ns, end_ns, exposed_ns = alpha_ns + total * rate / count, 0, 0
    for nth in range(count):
        start_ns = max(end_ns, backward_ns * (nth + 1) / count)
        end_ns = start_ns + each_ns
        exposed_ns += max(0, end_ns - max(start_ns, backward_ns))
    assert model.exposed_ns(count) == pytest.approx(exposed_ns, rel=1e-9, abs=2)


def test_the_best_size_of_buckets_is_as_calculus_has_it():
    # Sending takes as long as backward: it begins with the first of k buckets, at backward / k, and ends
    # k alpha + bytes / beta later. The least of that is at k = sqrt(backward / alpha).
    model = Model(64 * MIB, backward_ns=256_000, alpha_ns=1_000, ns_per_byte=256_000 / (64 * MIB))
    assert (model.best_mib(), model.count(4)) == (4, 16)
    assert model.exposed_ns(16) == 2 * 16_000


def test_ranks_without_a_gpu_are_told_nothing_of_buckets():
    calls = [(22 + 3 * at, 25 + 3 * at, 1) for at in range(20)] + [(82, 88, 4)]
    shape = reduced(calls, compute=((0, 60), (90, 100)))
    on_hosts = job(shape, *ddp(1, [1] * 24), infos=lambda rank: {"source": "host"})
    assert not {rule for rule, _ in rules(on_hosts)} & {"bucket_too_small", "bucket_too_large"}


def test_times_far_off_a_line_tell_no_latency():
    sizes = [1, 4, 1, 4, 1, 4, 1, 4]
    took = [9, 4, 2, 12, 9, 3, 1, 12]
    calls = [(22 + sum(took[:at]), 22 + sum(took[: at + 1]), mib) for at, mib in enumerate(sizes)]
    evidence = job(reduced(calls, compute=((0, 60), (90, 100))), *ddp(1, [1] * 20))
    assert ("bucket_too_small", ()) not in rules(evidence)


def test_buckets_of_one_size_do_not_tell_their_latency():
    calls = [(22 + 3 * at, 25 + 3 * at, 1) for at in range(21)]
    evidence = job(reduced(calls, compute=((0, 60), (90, 100))), *ddp(1, [1] * 21))
    assert ("bucket_too_small", ()) not in rules(evidence)


@pytest.mark.parametrize("first", [[], [(30, 32, 1)]])
def test_a_last_bucket_that_is_all_that_is_exposed_is_too_large(first):
    evidence = job(reduced([*first, (40, 60, 50), (70, 90, 50)], ((0, 70), (90, 100))), *ddp(50, [10] * 10))
    found = the(evidence, "bucket_too_large")
    assert found.gain_ns <= exposure(evidence).exposed_transfer_ns == 20 * MS
    assert ("one_after_the_other", ()) not in rules(evidence)
    size = int(found.advice.partition("bucket_cap_mb=")[2].rstrip(")"))
    assert size < 50


def test_ddp_is_not_told_to_issue_its_collectives_itself():
    behind = reduced([(60, 90, 25)], ((0, 60), (90, 100)))
    assert ("one_after_the_other", ()) in rules(job(behind))
    assert ("one_after_the_other", ()) not in rules(job(behind, *ddp(25, [25])))


def test_a_first_bucket_that_begins_late_tells_what_is_in_it():
    calls = [(60, 68, 25), (68, 74, 25), (74, 80, 25), (80, 86, 25)]
    evidence = job(reduced(calls, ((0, 72), (90, 100))), *ddp(25, [1, 300, 1, 1, 1]))
    found = the(evidence, "late_first_bucket")
    assert "2 gradients, the largest of 300 MiB" in found.measured
    assert found.gain_ns <= exposure(evidence).exposed_transfer_ns
    assert "without bucket_cap_mb" in found.advice
    unused = job(reduced(calls, ((0, 72), (90, 100))), *ddp(25, [25] * 4, find_unused_parameters=True))
    assert "static_graph=True" in the(unused, "late_first_bucket").advice


def test_gradients_copied_out_of_buckets_are_told_the_switch():
    copied = reduced([(40, 50, 25)], ((0, 80), (90, 100)), copies=((84, 89),))
    found = the(job(copied, *ddp(25, [25], gradient_as_bucket_view=False)), "gradient_copies")
    assert found.gain_ns == 5 * MS
    assert "gradient_as_bucket_view=True" in found.advice
    before = reduced([(40, 50, 25)], ((0, 50), (55, 80), (90, 100)), copies=((50, 55),))
    fused = reduced([(40, 50, 25)], ((0, 50), (90, 100)), ((50, 80),), fused=((81, 90),))
    for laid in (before, fused):
        assert find(job(laid, *ddp(25, [25], gradient_as_bucket_view=False))) == ()
    for flag in (True, None):
        assert find(job(copied, *ddp(25, [25], gradient_as_bucket_view=flag))) == ()
    assert find(job(HEALTHY, *ddp(25, [25], gradient_as_bucket_view=False))) == ()


def test_search_for_unused_parameters_is_told_where_gpus_idle():
    gap = reduced([(40, 50, 25)], ((0, 18), (22, 100)))
    searching = ddp(25, [25], find_unused_parameters=True)
    assert the(job(gap, *searching), "unused_parameters").gain_ns == 4 * MS
    assert find(job(gap, *searching, exact=False)) == ()
    fused = reduced([(40, 50, 25)], ((0, 18), (22, 100)), fused=((18, 22),))
    assert find(job(fused, *searching)) == ()
    assert find(job(HEALTHY, *searching)) == ()
    assert find(job(gap, *ddp(25, [25], find_unused_parameters=True, static_graph=True))) == ()


def accumulating(*calls):
    phases = (
        ("forward", 0, 10), ("backward", 10, 45), ("forward", 45, 55), ("backward", 55, 90),
        ("optimizer", 90, 100),
    )  # fmt: skip
    made = tuple(call(*each) for each in calls)
    return lambda rank, number: Timeline(100, ((0, 35), (45, 80), (90, 100)), made, phases=phases)


def test_reduction_in_every_micro_step_is_told():
    both = accumulating(("allreduce_", 25, 45), ("allreduce_", 70, 90))
    found = the(job(both, *ddp(25, [25])), "reduced_every_micro_step")
    assert (found.gain_ns, "no_sync()" in found.advice) == (10 * MS, True)
    last = accumulating(("allreduce_", 70, 90))
    assert ("reduced_every_micro_step", ()) not in rules(job(last, *ddp(25, [25])))
    little = accumulating(("allreduce_", 25, 45, 1e-5), ("allreduce_", 70, 90, 1e-5))
    assert ("reduced_every_micro_step", ()) not in rules(job(little, *ddp(25, [25])))


def test_fsdp2_that_reduces_each_micro_step_is_told_its_switch():
    scattered = accumulating(("_reduce_scatter_base", 25, 45), ("_reduce_scatter_base", 70, 90))
    found = the(job(scattered, knobs(prefetch_forward=None)), "reduced_every_micro_step")
    assert "set_requires_gradient_sync(False)" in found.advice
