"""When a step is called launch-bound."""

from __future__ import annotations

import pytest

from overlaptop.timeline.breakdown import launch_bound


@pytest.mark.parametrize(
    ("lead_ns", "idle_ns", "expected"),
    [
        (0, 300, True),
        (-5, 300, True),  # the clocks agree to some microseconds only
        (500, 300, False),  # the CPU is half a step ahead
        (0, 10, False),  # no lead, but the GPU was busy: it waited for nothing
        (None, 300, None),
        (0, None, None),
    ],
)
def test_a_step_is_launch_bound_without_a_lead_and_with_idle_time(lead_ns, idle_ns, expected) -> None:
    assert launch_bound(1000, lead_ns, idle_ns) is expected
