"""Which collective launched which kernel: right where it is told, and told wherever the order can tell."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.kernel_steps import LaunchInterval, NcclKernel, TracedStep
from overlaptop.agent.sources.naming import join, match

from .recordings import RECORDED, recording

KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "SendRecv")


def launch(number, kind="AllReduce", *, several=False):
    """A launch whose bytes are its number, so that it can be told from the others."""
    return CollectiveCall(
        kind, number, "0", True, "nccl", "cuda", -1,
        coalesced=several, several=several, issued_ns=number, kernels=(kind,),
    )  # fmt: skip


def kernel(at_ns, collective="AllReduce", *, replayed=False):
    return NcclKernel(
        f"ncclDevKernel_{collective}", collective, at_ns, at_ns + 10, beside_compute=True, replayed=replayed
    )


# Recorded bursts.


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_kernels_are_joined_to_their_collectives(name):
    burst = recording(name)
    bounds = [mark for mark in burst.marks if mark.edge is None]
    kind_of = {"_all_gather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}
    for step, begin, end in zip(burst.steps(), bounds, bounds[1:], strict=False):
        joined = join(step, burst.launches())
        assert joined.matched_ns == joined.comm_kernels_ns > 0
        # bfloat16 throughout; the larger side is the whole of a sharded tensor.
        assert sorted((each.op, each.bytes) for each in joined.collectives) == sorted(
            (
                entry["profiling_name"].removeprefix("nccl:"),
                2 * max(entry["input_sizes"][0][0], entry["output_sizes"][0][0]),
            )
            for entry in burst.entries
            if begin.unix_ns <= entry["time_created_ns"] < end.unix_ns
        )
        kinds = {kernel.start_ns: kernel.collective for each in step.intervals for kernel in each.kernels}
        assert [each.start_ns for each in joined.collectives] == sorted(kinds)
        for each in joined.collectives:
            assert kinds[each.start_ns] == kind_of.get(each.op, "AllReduce")


# By hand.


def test_replayed_kernels_are_not_joined():
    issued = LaunchInterval(0, 100, (kernel(10, replayed=True), kernel(30), kernel(50, replayed=True)))
    joined = join(TracedStep(0, 0, 10_000, (), None, intervals=(issued,)), [launch(1)])
    assert [(each.bytes, each.start_ns) for each in joined.collectives] == [(None, 10), (1, 30), (None, 50)]
    assert (joined.comm_kernels_ns, joined.matched_ns) == (30, 10)


# Against the truth.


def issue(chance, count, several_at=()):
    """`count` launches, each with the kernels that it truly became, in the order of launch."""
    truth = []
    for number in range(count):
        kind = chance.choice(KINDS)
        several = number in several_at
        share = chance.randrange(1, 5) if several else 1
        kernels = [
            kernel(1_000 * number + nth, chance.choice([kind] * 3 + ["Generic"] * (share == 1)))
            for nth in range(share)
        ]
        truth.append((launch(number, kind, several=several), kernels))
    return truth


def is_right(truth, matched):
    launch_of = {each.start_ns: launched for launched, kernels in truth for each in kernels}
    return all(launch_of[each.start_ns] == launched for launched, some in matched for each in some)


seeds = st.integers(0, 2**32)


@given(seeds, st.integers(0, 12), st.sampled_from([0, 1, 4]))
def test_match_with_a_complete_log_is_right(seed, count, several):
    chance = random.Random(seed)
    several_at = set(chance.sample(range(count), min(several, count)))
    truth = issue(chance, count, several_at)
    matched = match([each for _, some in truth for each in some], [each for each, _ in truth])
    assert matched == truth if len(several_at) < 2 else matched is None or is_right(truth, matched)


@given(seeds, st.integers(1, 12), st.booleans())
def test_missing_launches_never_lead_to_a_wrong_match(seed, count, launches_go):
    chance = random.Random(seed)
    truth = issue(chance, count)
    launches = [each for each, _ in truth]
    kernels = [each for _, some in truth for each in some]
    gone = launches if launches_go else kernels
    for _ in range(chance.randrange(1, len(gone) + 1)):
        gone.pop(chance.randrange(len(gone)))
    matched = match(kernels, launches)
    assert matched is None or is_right(truth, matched)
