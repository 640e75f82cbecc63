"""What of each collective is exposed, and that no finding promises more than that."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.findings.exposure import exposure, step_calls
from overlaptop.findings.find import find
from overlaptop.timeline.spans import difference, from_pairs, length_ns
from tests.fleet.builders import unmeasured

from .timelines import MS, Timeline, call, environment, gradients, job, knobs

STEP_MS = 100
ENDS = (("forward", 0, 20), ("backward", 0, 50), ("backward", 1, 90), ("optimizer", 0, 100))
PHASES = (("forward", 0, 20), ("backward", 20, 50), ("backward", 50, 90), ("optimizer", 90, 100))
OF_COMMUNICATION = {
    "bucket_too_large", "bucket_too_small", "communication_bound", "gathered_again", "late_first_bucket",
    "one_after_the_other", "one_queue", "prefetch_too_shallow", "reduced_every_micro_step", "timing_events",
}  # fmt: skip
OPS = ("allreduce_", "_allgather_base_", "_reduce_scatter_base")


@st.composite
def spans(draw):
    """Spans of whole ms, in order."""
    ends = sorted(draw(st.sets(st.integers(0, STEP_MS), max_size=16)))
    return [*zip(ends[::2], ends[1::2], strict=False)]


@st.composite
def timelines(draw):
    """The same for all ranks."""
    made = [
        call(draw(st.sampled_from(OPS)), *span, draw(st.sampled_from((1, 25)))) for span in draw(spans())
    ]
    return Timeline(STEP_MS, tuple(draw(spans())), tuple(made), phases=PHASES)


@settings(max_examples=40, deadline=None)
@given(timelines())
def test_exposed_is_what_has_no_compute_beside_it(laid):
    found = step_calls(job(lambda rank, number: laid))
    compute = from_pairs([(start * MS, end * MS) for start, end in laid.compute])
    expected = [
        length_ns(difference(from_pairs([(each.start_ns, each.end_ns)]), compute)) for each in laid.calls
    ]
    issued = found.issued if found is not None else ()
    assert [each.exposed_transfer_ns for each in issued] == expected
    for each, made in zip(issued, laid.calls, strict=True):
        name, nth = next((name, nth) for name, nth, end in ENDS if made.start_ns < end * MS)
        assert (each.phase, each.nth) == (name, nth)


@settings(max_examples=40, deadline=None)
@given(timelines(), st.booleans())
def test_no_finding_promises_more_than_what_is_exposed(laid, with_ddp):
    facts = [gradients([25] * 4), knobs(bucket_cap_mb=25)] if with_ddp else [knobs(prefetch_forward=0)]
    one = environment(CUDA_DEVICE_MAX_CONNECTIONS="1", TORCH_NCCL_ENABLE_TIMING="1" if with_ddp else "0")
    evidence = job(lambda rank, number: laid, *facts, *one)
    for each in find(evidence):
        if each.rule in OF_COMMUNICATION:
            assert 0 < each.gain_ns <= exposure(evidence).exposed_transfer_ns


def test_where_few_steps_are_split_these_do_not_stand_for_all():
    def lay(rank, number):
        """The ends agree in every third step only, in which the all-reduce is long."""
        ms = 14 if number % 3 == 0 else 1
        made = call("allreduce_", 22, 22 + ms - (0.9 * (rank == 0) if ms == 1 else 0))
        return Timeline(22 + ms, ((0, 22),), (made,))

    assert exposure(job(lay, steps=12)) is None
    assert exposure(job(lambda rank, number: lay(rank, 0), steps=12)) is not None


@pytest.mark.parametrize("step_s", [0.5, 2.6, 5])
@pytest.mark.parametrize("measured_every", [1, 2])
def test_of_long_steps_as_many_as_are_split_stand_for_the_rest(step_s, measured_every):
    ends = 600 * step_s

    def lay(rank, number):
        return Timeline(1000 * step_s, ((0, ends),), (call("allreduce_", ends, 800 * step_s),))

    def told(totals, detail):
        if totals.step % measured_every:
            return [replace(unmeasured(totals.rank, totals.step, step_s * 1000), start_ns=totals.start_ns)]
        return totals, detail

    found = exposure(job(lay, steps=50, told=told))
    assert found is not None
    assert found.exposed_transfer_ns == pytest.approx(200 * step_s * MS)


@pytest.mark.parametrize(("first", "is_known"), [(9, False), (5, True)])
def test_of_few_split_steps_nothing_is_said(first, is_known):
    laid = Timeline(100, ((0, 60),), (call("allreduce_", 60, 80),))
    found = job(lambda *_: laid, steps=14, told=lambda *each: each if each[0].step >= first else each[:1])
    assert (exposure(found) is not None) is is_known
