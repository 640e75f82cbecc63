"""What is exposed, that no finding promises more, models of it, and transfers that become slower."""

import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.findings.buckets import Model
from overlaptop.findings.exposure import exposure, step_calls
from overlaptop.findings.find import find
from overlaptop.findings.rules import slower_transfers
from overlaptop.findings.rules.slower_transfers import LEAST_BEFORE, LEAST_SLOW, STRETCH
from overlaptop.fleet.waits import StepTransfer
from overlaptop.timeline.spans import difference, from_pairs, length_ns
from tests.fleet.builders import MS, T0

from .jobs import MIB, Timeline, call, environment, gradients, knobs, names, the, timelines

ACCUMULATED = (("forward", 0, 20), ("backward", 20, 50), ("backward", 50, 90), ("optimizer", 90, 100))
OF_COMMUNICATION = {
    "bucket_too_large", "bucket_too_small", "communication_bound", "gathered_again", "late_first_bucket",
    "one_after_the_other", "one_queue", "prefetch_too_shallow", "reduced_every_micro_step", "timing_events",
}  # fmt: skip
OPS = ("allreduce_", "_allgather_base_", "_reduce_scatter_base")


@st.composite
def spans(draw):
    """Spans of whole ms, in order."""
    ends = sorted(draw(st.sets(st.integers(0, 100), max_size=16)))
    return [*zip(ends[::2], ends[1::2], strict=False)]


@st.composite
def steps(draw):
    """The same for all ranks."""
    made = [
        call(draw(st.sampled_from(OPS)), *span, draw(st.sampled_from((1, 25)))) for span in draw(spans())
    ]
    return Timeline(100, tuple(draw(spans())), tuple(made), phases=ACCUMULATED)


@settings(max_examples=40, deadline=None)
@given(steps())
def test_exposed_is_what_has_no_compute_beside_it(laid):
    found = step_calls(timelines(lambda rank, number: laid))
    compute = from_pairs([(start * MS, end * MS) for start, end in laid.compute])
    expected = [
        length_ns(difference(from_pairs([(each.start_ns, each.end_ns)]), compute)) for each in laid.calls
    ]
    issued = found.issued if found is not None else ()
    assert [each.exposed_transfer_ns for each in issued] == expected


@settings(max_examples=40, deadline=None)
@given(steps(), st.booleans())
def test_no_finding_promises_more_than_what_is_exposed(laid, with_ddp):
    facts = [gradients([25] * 4), knobs(bucket_cap_mb=25)] if with_ddp else [knobs(prefetch_forward=0)]
    one = environment(CUDA_DEVICE_MAX_CONNECTIONS="1", TORCH_NCCL_ENABLE_TIMING="1" if with_ddp else "0")
    evidence = timelines(lambda rank, number: laid, *facts, *one)
    for each in find(evidence):
        if each.rule in OF_COMMUNICATION:
            assert 0 < each.gain_ns <= exposure(evidence).exposed_transfer_ns


def test_where_few_steps_are_split_these_do_not_stand_for_all():
    def lay(rank, number):
        """The ends agree in every third step only, in which the all-reduce is long."""
        ms = 1 if number % 3 else 14
        made = call("allreduce_", 22, 22 + ms - (0.9 * (rank == 0) if ms == 1 else 0))
        return Timeline(22 + ms, ((0, 22),), (made,))

    assert exposure(timelines(lay, steps=12)) is None


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


# Transfers that become slower

BEFORE, SLOW = LEAST_BEFORE * STRETCH, LEAST_SLOW * STRETCH
SETTLED = [40] * 60


def exposed(rank, number, end_ms=380):
    """An all-reduce with nothing beside it."""
    return Timeline(500, ((0, 300), (end_ms, 500)), (call("allreduce_", 300, end_ms),))


@pytest.fixture(scope="module")
def evidence():
    return timelines(exposed, steps=24)


def transfers(takes_ms, mib=lambda number: 25):
    """A step each half second."""
    return tuple(
        StepTransfer(number, T0 + number * 500 * MS, 1, mib(number) * MIB, ms * MS)
        for number, ms in enumerate(takes_ms)
    )


def is_slower(evidence, *args):
    return "slower_transfers" in names(replace(evidence, transfers=transfers(*args)))


def test_what_they_take_now_and_took_before_is_said(evidence):
    found = the(replace(evidence, transfers=transfers([41] * 60 + [82] * 20)), "slower_transfers")
    assert found.title == "transfer takes 82.0 ms a step, before it took 41.0 ms"
    assert found.measured == "for 10 s; each of these steps moves 25.0 MiB in 1 collective"
    assert found.gain_ns == pytest.approx(exposure(evidence).exposed_transfer_ns / 2)
    assert found.ranks == ()


@pytest.mark.parametrize(
    ("takes_ms", "is_found"),
    [
        ([40] * BEFORE + [60] * SLOW, True),
        ([40] * BEFORE + [59] * SLOW, False),
        (SETTLED + [80] * SLOW + [40] * (STRETCH // 2 + 1), False),  # it is over
        (SETTLED + [80, 40] * 40, False),
        ((SETTLED + [80] * 15) * 4, False),  # it comes and goes
    ],
)
def test_they_take_longer_since_one_time(evidence, takes_ms, is_found):
    assert is_slower(evidence, takes_ms) is is_found


@pytest.mark.parametrize(
    ("mib", "is_found"),
    [
        (lambda number: 25 + (number >= 80), False),
        (lambda number: 25 if number % 4 else 50, True),  # every fourth does something else
    ],
)
def test_only_steps_are_compared_that_move_the_same(evidence, mib, is_found):
    assert is_slower(evidence, [40] * 80 + [80] * 40, mib) is is_found


def test_noise_is_not_taken_for_it_even_where_it_lasts(evidence):
    """Of what a step is slower than usual, most is left in the next one."""
    dice, strays, takes_ms = random.Random(1), 0.0, []
    for _ in range(300):
        strays = 0.8 * strays + 0.6 * dice.gauss(0, 0.2)
        takes_ms.append(40 * math.exp(strays))
    looks = (replace(evidence, transfers=transfers(takes_ms[:upto])) for upto in range(len(takes_ms)))
    assert not any(list(slower_transfers.look(each)) for each in looks)


@pytest.mark.parametrize(("delayed_ms", "is_found"), [(10, True), (11, False)])
def test_nothing_is_said_where_busy_cpus_move_the_bytes(delayed_ms, is_found):
    def told(totals, detail):
        return msgspec.structs.replace(totals, delayed_ns=delayed_ms * MS), detail

    assert is_slower(timelines(exposed, steps=24, told=told), SETTLED + [80] * 20) is is_found


def test_a_running_job_is_seen_to_become_slower():
    """The steps that its splitter keeps."""
    slows = timelines(lambda rank, at: exposed(rank, at, 340 if at < 60 else 380), steps=74)
    assert "slower_transfers" in names(slows)
