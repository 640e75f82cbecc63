"""Who is called late: rarely anybody where ranks are alike, and whoever is late, among few or many."""

import random
from statistics import fmean, mean

import pytest
from msgspec import structs

from overlaptop.fleet import job_state
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.wait_breakdown import window_of
from overlaptop.fleet.waits import WORTH_SHARE, StepWaits
from overlaptop.fleet.watching import MOST_COMPARED
from overlaptop.report.who_is_late import who_is_late
from overlaptop.timeline.arrivals import Collective, WaitTimes
from overlaptop.wire.messages import CollectiveSpan, GroupMembers

from .builders import MS, Clock, info, laid_out, status, welcome
from .pipeline import gpipe, one_forward_one_backward, seen

STEP, STEP_NS = 100_000, 100_000_000
JITTER = 0.1  # Of a step: the standard deviation of when each rank comes to its first collective
COLLECTIVES = 3
WINDOWS = 100


def simulated(ranks, steps, draw, late=0.0):
    """Steps in which rank 1 comes this share of a step later than ranks that are all alike.

    Who comes late to the first collective of a step comes a little late to the others, too.
    """
    split = []
    for number in range(steps):
        came = [draw.gauss(late * STEP if rank == 1 else 0, JITTER * STEP) for rank in range(ranks)]
        collectives, waited = [], [0] * ranks
        for nth in range(COLLECTIVES):
            starts = [round((1 + nth) * STEP_NS + 1000 * each / 10**nth) for each in came]
            end = max(starts) + 1_000_000
            collectives.append(
                Collective("allreduce_", "0", 1, {rank: (at, end) for rank, at in enumerate(starts)})
            )
            waited = [was + max(starts) - at for was, at in zip(waited, starts, strict=True)]
        times = {rank: WaitTimes(ns, 0, 0, ns, 0, 0) for rank, ns in enumerate(waited)}
        split.append(StepWaits.of(number, number, STEP_NS, tuple(collectives), times))
    return split


@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_of_ranks_alike_one_window_in_twenty_names_any(ranks, steps):
    draw = random.Random(f"{ranks} {steps}")
    windows = [window_of(simulated(ranks, steps, draw)) for _ in range(WINDOWS)]
    assert mean(window.share for window in windows) > WORTH_SHARE
    assert sum(bool(window.late) for window in windows) <= WINDOWS / 20


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rank_late_by_a_fifth_of_a_step_is_nearly_always_named(ranks):
    draw = random.Random(ranks)
    windows = [window_of(simulated(ranks, 40, draw, late=0.2)) for _ in range(WINDOWS)]
    assert sum([each.rank for each in window.late] == [1] for window in windows) > 0.95 * WINDOWS


# A pipeline: who waits as its schedule has it is not late


schedules = pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
shapes = pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 16), (8, 8)])
groups = pytest.mark.parametrize(
    "group", [lambda first: "0 pp", lambda first: f"pp {first}-{first + 1}"], ids=["one", "a group a pair"]
)


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


# A large job, of whose ranks some are compared

NODE_RANKS = 8
STEP_MS, COLLECTIVE_MS, LATE_MS = 500, 40, 60


class LargeJob:
    """Ranks that make two measured steps a second; a rank may be late. Compared ranks send timelines."""

    def __init__(self, ranks, group=None):
        self.clock, self.ranks, self.group = Clock(), ranks, group
        self.fleet, self.steps = JobState(self.clock), 0
        self.fleet.set_hub_state(HubState.LIVE)
        self.fleet.apply(welcome(world_size=ranks))
        for rank in range(ranks):
            place = {"host": f"gpu-{rank // NODE_RANKS}", "local_rank": rank % NODE_RANKS}
            self.fleet.apply(info(rank, world_size=ranks, **place))
        self.fleet.apply(status())
        self.snapshot = self.fleet.snapshot()

    def step(self, late=None):
        """All ranks make a step; return the snapshot after it."""
        start_ns, number = self.clock(), self.steps
        for rank in range(self.ranks):
            begin_ms = 300 + (rank * 7919 + number * 13) % 5 + (LATE_MS if rank == late else 0)
            end_ms = 300 + LATE_MS + COLLECTIVE_MS if late is not None else 305 + COLLECTIVE_MS
            call = CollectiveSpan(
                "allreduce_", 1 << 20, "0 default_pg", True, begin_ms * MS, end_ms * MS, number
            )
            totals, detail = laid_out(
                rank, number, start_ns, STEP_MS * MS, compute=((0, begin_ms * MS),), calls=(call,)
            )
            self.fleet.apply(totals)
            if rank in self.snapshot.compared:
                groups = (GroupMembers("0 default_pg", tuple(self.group)),) if self.group else ()
                self.fleet.apply(structs.replace(detail, groups=groups))
        self.steps += 1
        self.clock.pass_s(STEP_MS / 1e3)
        self.snapshot = self.fleet.snapshot()
        return self.snapshot


def test_a_late_rank_of_a_thousand_is_named_within_ten_seconds():
    job, late = LargeJob(1024, group=range(1024)), 613
    for _ in range(4):
        assert not job.step().wait_window or not job.snapshot.wait_window.late
    looks = range(10_000 // STEP_MS)
    assert any(who_is_late(job.step(late)).late_rank == late for _ in looks)
    assert f"rank {late} is late" in who_is_late(job.snapshot).words
    assert f"{MOST_COMPARED - 1} compared ranks wait" in who_is_late(job.snapshot).words


def test_another_late_rank_takes_the_place_and_room_of_the_first(monkeypatch):
    monkeypatch.setattr(job_state, "MAX_TIMELINE_BYTES", 20_000)
    job = LargeJob(40)
    for late in (3, 33):
        for _ in range(30):
            job.step(late)
        assert who_is_late(job.snapshot).late_rank == late
    kept = [each for view in job.snapshot.ranks for each in view.timelines]
    assert sum(len(each.packed) for each in kept) <= 20_000
    assert max(each.step for each in kept) == job.steps - 1
