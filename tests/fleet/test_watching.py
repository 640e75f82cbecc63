"""Which ranks of a large job are compared, so that the late one is found."""

from msgspec.structs import replace

from overlaptop.fleet import job_state
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.watching import MOST_COMPARED
from overlaptop.report.who_is_late import who_is_late
from overlaptop.wire.messages import CollectiveSpan, GroupMembers

from .builders import MS, Clock, info, laid_out, status, welcome

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
                self.fleet.apply(replace(detail, groups=groups))
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
