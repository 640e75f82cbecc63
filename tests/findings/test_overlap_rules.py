"""Why communication is not hidden: too much of it, or something that keeps it apart from compute."""

from dataclasses import replace

import pytest

from overlaptop.findings.exposure import exposure
from overlaptop.findings.find import find
from overlaptop.findings.finding import Certainty

from .jobs import rules
from .timelines import MS, PHASES, Timeline, call, commanded, environment, gradients, job, knobs

FSDP2 = knobs(prefetch_forward=None, prefetch_backward=None)
ONE_CONNECTION = environment(CUDA_DEVICE_MAX_CONNECTIONS="1")
TIMED = environment(CUDA_DEVICE_MAX_CONNECTIONS="1", TORCH_NCCL_ENABLE_TIMING="1")


def overlapped(rank, number):
    """Four all-reduces beside backward; the last one reaches 2 ms beyond."""
    calls = tuple(call("allreduce_", at, at + 10) for at in (40, 52, 64, 77))
    return Timeline(100, ((0, 85), (90, 100)), calls, phases=PHASES)


def apart(rank, number):
    """Three of them with no compute beside them."""
    calls = tuple(call("allreduce_", at, at + 10) for at in (30, 50, 70))
    return Timeline(100, ((0, 30), (40, 50), (60, 70), (80, 100)), calls, phases=PHASES)


def long(rank, number):
    """Bytes move for 80 ms beside and behind 20 ms of compute."""
    return Timeline(100, ((0, 20),), (call("allreduce_", 10, 90),), phases=PHASES)


def only(evidence):
    (found,) = find(evidence)
    explained_ns = exposure(evidence).exposed_transfer_ns
    assert 0 < found.gain_ns <= explained_ns
    return found


def test_hidden_communication_raises_nothing_whatever_is_set():
    assert find(job(overlapped, *TIMED, FSDP2, gradients([25] * 4), knobs(bucket_cap_mb=25))) == ()


def test_what_no_overlap_can_hide_is_told_as_one_figure():
    found = only(job(long, gradients([100])))
    assert (found.rule, found.certainty) == ("communication_bound", Certainty.MEASURED)
    assert found.gain_ns == 60 * MS
    assert found.title.endswith("compute takes 20.0 ms: overlap alone leaves 60.0 ms exposed")
    assert " ms" not in found.measured
    assert "over 4 micro-batches, all but the last in model.no_sync()" in found.advice
    assert "set_requires_gradient_sync(False)" in only(job(long, FSDP2)).advice


@pytest.mark.parametrize(("transfer_ms", "found"), [(49, set()), (55, {("communication_bound", ())})])
def test_transfer_that_barely_exceeds_compute_bounds_nothing(transfer_ms, found):
    def lay(rank, number):
        reduced = call("allreduce_", 40, 40 + transfer_ms)
        return Timeline(45 + transfer_ms, ((0, 48),), (reduced,), phases=PHASES)

    assert rules(job(lay)) == found


def test_many_small_collectives_are_told_to_go_as_one():
    def small(rank, number):
        calls = tuple(call("allreduce_", 10 + 4 * at, 13 + 4 * at, 0.1) for at in range(20))
        return Timeline(100, ((0, 20), (90, 100)), calls, phases=PHASES)

    advice = only(job(small)).advice
    assert advice.startswith("20 of 20 collectives move less than 256 KiB each")


def test_one_after_the_other_names_the_call_that_costs_most():
    def with_another(rank, number):
        each = apart(rank, number)
        calls = (call("broadcast_", 5, 10), *each.calls)
        return replace(each, compute=((0, 5), (10, 30), *each.compute[1:]), calls=calls)

    found = only(job(with_another))
    assert (found.rule, found.certainty) == ("one_after_the_other", Certainty.POSSIBLE)
    assert found.gain_ns == 35 * MS
    assert found.advice.startswith("allreduce in backward (3 a step): issue it with async_op=True")


@pytest.mark.parametrize(
    ("told", "begins"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "unset CUDA_LAUNCH_BLOCKING"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "true"}, "unset TORCH_NCCL_BLOCKING_WAIT"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "0"}, "allreduce in backward"),
    ],
)
def test_one_after_the_other_names_the_variable_that_does_it(told, begins):
    assert only(job(apart, *environment(**told))).advice.startswith(begins)


def test_reductions_behind_backward_are_told_to_begin_beside_it():
    def behind(rank, number):
        phases = (("forward", 0, 20), ("backward", 20, 60), ("optimizer", 90, 100))
        return Timeline(100, ((0, 60), (90, 100)), (call("allreduce_", 60, 90),), phases=phases)

    advice = only(job(behind)).advice
    assert advice.startswith(
        "allreduce after backward (1 a step) could begin beside backward: with Distributed"
    )


def test_timing_events_on_one_connection_are_named():
    found = only(job(apart, *TIMED))
    assert (found.rule, found.ranks) == ("timing_events", (0, 1))
    assert only(job(apart, *ONE_CONNECTION)).rule == "one_after_the_other"
    on_cpus = job(apart, *TIMED, infos=lambda rank: {"device": "cpu"})
    assert only(on_cpus).rule == "one_after_the_other"


def test_one_hardware_queue_is_named_under_fsdp2():
    assert only(job(apart, *ONE_CONNECTION, FSDP2)).rule == "one_queue"
    assert only(job(apart, *TIMED, FSDP2)).rule == "timing_events"


def test_a_depth_is_set_by_command_only_where_the_job_obeys():
    depth = {"prefetch_forward": None, "prefetch_backward": None}
    line = "set_modules_to_forward_prefetch()"
    advice = only(job(apart, *commanded(**depth))).advice
    assert f"{line}; to try it now: overlaptop set prefetch_forward=2" in advice
    advice = only(job(apart, FSDP2)).advice
    assert "set_modules_to_forward_prefetch()" in advice
    assert "overlaptop" not in advice


def test_waiting_for_a_late_rank_is_no_matter_of_overlap():
    def late(rank, number):
        starts = (35, 55, 75) if rank else (10, 40, 60)
        calls = tuple(call("allreduce_", at, end) for at, end in zip(starts, (40, 60, 80), strict=True))
        return Timeline(100, ((0, 10), (80, 100)), calls, phases=PHASES)

    found = {rule for rule, _ in rules(job(late))}
    assert not found & {"one_after_the_other", "communication_bound"}
