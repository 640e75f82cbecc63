"""Clocks of hosts in traces: an offset is no lateness, and lateness is no offset."""

import pytest

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.job import analyze
from overlaptop.timeline.arrivals import lateness
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import kernel, named, write

STEP_US = 20_000.0


def late_in(folder, ahead_us, late_us=(0, 0), jitter_us=3.0):
    """Two ranks; `ahead_us`: rank 1's clock, `late_us`: how late each rank comes to each all-reduce."""
    for rank in (0, 1):
        events = []
        for step in range(40):
            start_us = step * STEP_US
            come_us = start_us + 5_000 + late_us[rank]
            end_us = start_us + 5_000 + max(late_us) + 9_000 + jitter_us * (rank * step % 3)
            seen_us = [at + rank * ahead_us for at in (start_us, come_us, end_us)]
            events.append(kernel(seen_us[0], seen_us[1] - seen_us[0]))
            events.append(named(seen_us[1], seen_us[2] - seen_us[1]))
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    job = analyze(folder, LaneRules())
    found = lateness(job.waits[WHOLE_TRACE].collectives)
    return job, {each.rank: each.late_count for each in found.ranks if each.late_count} if found else {}


@pytest.mark.parametrize("ahead_us", [0.0, 3_000.0, -3_000.0, 250.0, 40.0, 90_000.0, 3_600_000_000.0])
def test_a_clock_that_is_ahead_makes_no_rank_late(tmp_path, ahead_us):
    job, late = late_in(tmp_path, ahead_us)
    assert late == {}
    said = [remark for summary in job.ranks for remark in summary.remarks]
    assert len(said) == (ahead_us != 0)
    assert all(("ahead" if ahead_us > 0 else "behind") in remark for remark in said)


@pytest.mark.parametrize("ahead_us", [0.0, 3_000.0, -50_000.0])
@pytest.mark.parametrize("late_us", [(0, 800.0), (800.0, 0)])
def test_a_late_rank_is_found_beside_an_offset(tmp_path, ahead_us, late_us):
    job, late = late_in(tmp_path, ahead_us, late_us)
    slow = late_us.index(800.0)
    assert late == {slow: 40}
    waited = job.waits[WHOLE_TRACE].times[1 - slow].wait_ns
    assert waited == pytest.approx(40 * 800_000, rel=0.05)


def test_lateness_below_the_clocks_error_is_not_attributed(tmp_path):
    """Ends vary by some 100 us, and the rank is late by less."""
    _, late = late_in(tmp_path, 3_000.0, (0, 40.0), jitter_us=100.0)
    assert late == {}
