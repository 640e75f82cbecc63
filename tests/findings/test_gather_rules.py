"""FSDP2's all-gathers: exposed for want of prefetch, or gathered again although there is memory."""

import pytest

from overlaptop.findings.exposure import exposure
from overlaptop.findings.find import find
from tests.fleet.builders import GB, device, sample

from .timelines import MS, Timeline, call, commanded, job, knobs

PHASES = (("forward", 0, 50), ("backward", 50, 100))
MEMORY = [device(0), device(1), sample(0, memory_used_bytes=20 * GB), sample(1, memory_used_bytes=20 * GB)]
FULL = [device(0), device(1), sample(0, memory_used_bytes=140 * GB), sample(1, memory_used_bytes=20 * GB)]
SHALLOW = knobs(prefetch_forward=None, prefetch_backward=1)


def gathers(forward, backward=(), *, gather_ms=4, mib=64):
    """A step with gathers that begin at these times, and compute in all the time in which none runs or,
    for what begins with ``~``, also beside it.
    """
    starts = [(abs(at), at < 0) for at in (*forward, *backward)]
    calls = tuple(call("_allgather_base_", at, at + gather_ms, mib) for at, _ in starts)
    compute, at = [], 0
    for start, hidden in starts:
        if not hidden:
            compute.append((at, start))
            at = start + gather_ms
    compute.append((at, 100))
    return lambda rank, number: Timeline(100, tuple(compute), calls, phases=PHASES)


EACH_LAYER = gathers((0.1, 10, 20, 30, 40))
FIRST_ONLY = gathers((0.1, -10, -20, -30, -40), (-55, -65, -75, -85), gather_ms=8)


def found_by(evidence):
    found = find(evidence)
    for each in found:
        assert 0 < each.gain_ns <= exposure(evidence).exposed_transfer_ns
    return {each.rule: each for each in found}


def test_gathers_exposed_at_each_layer_ask_for_prefetch():
    (found,) = found_by(job(EACH_LAYER, SHALLOW)).values()
    assert found.rule == "prefetch_too_shallow"
    assert found.gain_ns == 16 * MS  # the first one is exposed whatever the depth is
    assert found.advice == (
        "set_modules_to_forward_prefetch() with the next 1 module in each, "
        "which takes up to 64.0 MiB of memory"
    )
    obeys = commanded(prefetch_forward=None, prefetch_backward=1)
    (by_command,) = found_by(job(EACH_LAYER, *obeys)).values()
    assert by_command.advice == f"{found.advice}; to try it now: overlaptop set prefetch_forward=1"


@pytest.mark.parametrize("facts", [(SHALLOW,), (SHALLOW, *MEMORY)])
def test_only_the_first_gather_exposed_is_as_it_has_to_be(facts):
    assert found_by(job(FIRST_ONLY, *facts)) == {}


def test_gathers_longer_than_a_layer_are_no_matter_of_prefetch():
    assert "prefetch_too_shallow" not in found_by(job(gathers((0.1, 10, 20, 30, 40), gather_ms=9), SHALLOW))


def test_a_depth_that_is_set_already_is_not_asked_for():
    (found,) = found_by(job(EACH_LAYER, knobs(prefetch_forward=1))).values()
    assert (found.rule, ".item()" in found.advice) == ("one_after_the_other", True)


def test_all_gathers_of_another_wrapper_are_not_fsdp2s():
    assert "prefetch_too_shallow" not in found_by(job(EACH_LAYER))


def test_what_is_gathered_again_can_stay_where_there_is_memory():
    again = gathers((0.1, -10, -20, -30), (55, 65, 75, 85))
    deep = knobs(prefetch_forward=1, prefetch_backward=1)
    (found,) = found_by(job(again, deep, *MEMORY)).values()
    assert (found.rule, found.gain_ns) == ("gathered_again", 16 * MS)
    assert "reshard_after_forward=False): takes 256 MiB more" in found.advice
    assert found_by(job(again, deep)) == {}
    assert found_by(job(again, deep, *FULL)).keys() == {"gathered_again"}
    assert found_by(job(gathers((0.1, -10), (55, 65, 75, 85), mib=2000), deep, *FULL)) == {}
