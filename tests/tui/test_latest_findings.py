"""What the dashboard shows of findings before any step is measured."""

from msgspec.structs import replace

from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.report.who_is_late import Kind
from overlaptop.tui.model.latest_findings import LatestFindings
from tests.fleet.builders import MS, T0, Clock, S, info, unmeasured, welcome


def test_a_rank_that_loads_for_half_of_each_step_is_named_by_its_counters():
    clock = Clock()
    fleet = JobState(clock)
    fleet.set_hub_state(HubState.LIVE)
    for message in (welcome(world_size=2), info(0), info(1)):
        fleet.apply(message)
    for number in range(30):
        for rank in (0, 1):
            fleet.apply(replace(unmeasured(rank, number), loading_ns=60 * MS * rank))
    latest, lines = LatestFindings(), []
    for second in range(3):
        clock.at_ns = T0 + (10 + second) * S
        snapshot = fleet.snapshot()
        found = latest.take(snapshot)
        lines.append(latest.line(snapshot))
    assert [(each.rule, each.ranks) for each in found] == [("data_loading", (1,))]
    assert (lines[-1].kind, lines[-1].late_rank, lines[-1].cause_rule) == (Kind.LATE, 1, "data_loading")
