from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given

from overlaptop.timeline import ratios
from overlaptop.timeline.overlap import Breakdown, break_down, launch_bound, stalls
from overlaptop.timeline.spans import from_pairs

from .strategies import offsets_ns, origins_ns, raw_pairs, shifted, ticks


def swept(start_ns, end_ns, compute, comm, copy, fused):
    """The breakdown by looking at every ns of the step on its own."""
    whole = set(range(start_ns, end_ns))
    step = whole - ticks(fused)
    in_compute, in_comm, in_copy = (ticks(lane) & step for lane in (compute, comm, copy))
    return Breakdown(
        step_ns=len(whole),
        compute_ns=len(in_compute),
        comm_ns=len(in_comm),
        hidden_ns=len(in_compute & in_comm),
        exposed_ns=len(in_comm - in_compute),
        compute_only_ns=len(in_compute - in_comm),
        copy_only_ns=len(in_copy - in_compute - in_comm),
        idle_ns=len(step - in_compute - in_comm - in_copy),
        fused_ns=len(whole & ticks(fused)),
    )


@given(offsets_ns, offsets_ns, raw_pairs, raw_pairs, raw_pairs, raw_pairs, origins_ns)
def test_a_breakdown_is_what_a_sweep_of_every_ns_finds(
    edge_ns, other_edge_ns, compute, comm, copy, fused, origin_ns
):
    start_ns, end_ns = sorted((edge_ns, other_edge_ns))
    lanes = (compute, comm, copy, fused)
    found = break_down(
        start_ns + origin_ns, end_ns + origin_ns, *(shifted(lane, origin_ns) for lane in lanes)
    )
    assert found == swept(start_ns, end_ns, *lanes)
    assert all(type(part) is int for part in astuple(found))


def test_ratios_are_known_where_something_ran():
    assert ratios.overlap(15, 35) == pytest.approx(15 / 35)
    assert ratios.speedup(30, 30, 30, 100) == 0.9
    assert ratios.attainable(60, 35, 10) == pytest.approx(105 / 70)
    assert (ratios.overlap(0, 0), ratios.speedup(0, 0, 0, 5), ratios.attainable(0, 0, 0)) == (None,) * 3


def stalled_ns(start_ns, end_ns, compute, comm):
    """The stalled ns by looking at every ns of the step on its own, the last one first."""
    computes, communicates = ticks(compute), ticks(comm)
    stalled = set()
    for ns in range(end_ns - 1, start_ns - 1, -1):
        if ns not in communicates or ns in computes:
            continue
        # What ended this stretch: the communication itself, or somebody else while it went on?
        if ns + 1 not in communicates or (ns + 1 < end_ns and ns + 1 in stalled):
            stalled.add(ns)
    return stalled


@given(offsets_ns, offsets_ns, raw_pairs, raw_pairs, origins_ns)
def test_stalls_are_what_a_sweep_of_every_ns_finds(edge_ns, other_edge_ns, compute, comm, origin_ns):
    start_ns, end_ns = sorted((edge_ns, other_edge_ns))
    lanes = (from_pairs(shifted(lane, origin_ns)) for lane in (compute, comm))
    found = stalls(start_ns + origin_ns, end_ns + origin_ns, *lanes)
    assert ticks(found, origin_ns) == stalled_ns(start_ns, end_ns, compute, comm)
    assert np.array_equal(from_pairs(found), found)


@pytest.mark.parametrize(
    ("lead_ns", "idle_ns", "host_ns", "expected"),
    [
        (-5, 300, None, True),  # the clocks agree to some microseconds only
        (500, 300, 500, False),  # the CPU is half a step ahead
        (30, 300, 950, True),  # it is ahead at the end, after a pause that nothing blocked
        (0, 10, 1000, False),  # no lead, but the GPU was busy: it waited for nothing
        (None, 300, None, None),
        (0, None, None, None),
    ],
)
def test_step_of_a_busy_cpu_and_with_idle_time_is_launch_bound(lead_ns, idle_ns, host_ns, expected):
    assert launch_bound(1000, lead_ns, idle_ns, host_ns) is expected
