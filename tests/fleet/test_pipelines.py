"""Who is late in a pipeline: a slow stage, and nobody where ranks wait as its schedule has it."""

from statistics import fmean

import pytest

from .builders import MS
from .pipeline import BACKWARD_NS, FORWARD_NS, gpipe, one_forward_one_backward, seen

SHAPES = [(2, 4), (4, 16), (8, 8)]
GROUPS = [lambda first: "0 pp", lambda first: f"pp {first}-{first + 1}"]
schedules = pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
shapes = pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
groups = pytest.mark.parametrize("group", GROUPS, ids=["one group", "a group a pair"])


@schedules
@shapes
@groups
def test_nobody_is_late_in_a_pipeline_of_equal_stages(schedule, stages, micro_batches, group):
    window = seen(schedule, stages, micro_batches, group=group).wait_window
    assert window.share > 0.1, "else this proves nothing"
    assert (window.late, window.in_receives) == ((), True)
    waits_ns = window.waits_ns.values()
    assert max(waits_ns) < 1.2 * fmean(waits_ns)


@schedules
@shapes
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_stage_that_computes_three_times_as_long_is_late(schedule, stages, micro_batches, which):
    slow = which % stages
    made = seen(schedule, stages, micro_batches, takes=lambda stage: 1 + 2 * (stage == slow), steps=20)
    assert [each.rank for each in made.wait_window.late] == [slow]


@schedules
def test_a_stage_that_stands_still_is_late(schedule):
    stands_ns = 4 * (FORWARD_NS + BACKWARD_NS)
    made = seen(schedule, 4, 8, stands_ns=lambda stage: stands_ns * (stage == 2), steps=20)
    assert [each.rank for each in made.wait_window.late] == [2]
    own_ns = made.wait_window.waits_ns
    assert own_ns[0] - own_ns[2] == pytest.approx(stands_ns, abs=2 * MS)
