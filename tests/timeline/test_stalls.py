import numpy as np
import pytest
from hypothesis import given

from overlaptop.timeline.breakdown import stalls
from overlaptop.timeline.spans import empty, flatten, from_pairs

from .strategies import offsets_ns, origins_ns, raw_pairs, shifted, ticks


def swept(start_ns, end_ns, compute, comm):
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
    assert ticks(found, origin_ns) == swept(start_ns, end_ns, compute, comm)
    assert np.array_equal(from_pairs(found), found)


@pytest.mark.parametrize(
    ("compute", "comm", "expected"),
    [
        ([(0, 40), (60, 100)], [(30, 60)], (40, 60)),  # compute waited for its end
        ([(0, 40), (60, 100)], [(30, 70)], ()),  # it went on before: that was no wait for it
        ([(0, 40)], [(30, 60)], (40, 60)),  # nothing follows in the step
        ([(0, 40)], [(30, 130)], ()),  # it outlasts the step
        ([(0, 40)], [(30, 100)], (40, 100)),  # it ends with the step
        ([(0, 40), (70, 100)], [(30, 50), (60, 70)], (40, 50, 60, 70)),
        ([(0, 40), (45, 50)], [(30, 60)], (50, 60)),
        ([(0, 100)], [(30, 60)], ()),
        ([], [(30, 60)], (30, 60)),
        ([(0, 100)], [], ()),
    ],
)
def test_only_communication_that_compute_waited_out_is_a_stall(compute, comm, expected):
    lanes = (from_pairs(lane) if lane else empty() for lane in (compute, comm))
    assert flatten(stalls(0, 100, *lanes)) == expected
