"""Many ranks are named by the hosts that they fill."""

import pytest
from msgspec.structs import replace

from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.report.troubles import in_brief

from .builders import Clock, feed, info, status, step, welcome


def test_ranks_that_fill_hosts_are_named_with_them():
    views = feed(JobState(Clock()), *(info(rank, host=f"gpu-{rank // 8}") for rank in range(32))).ranks
    assert ranks_and_hosts(range(8, 16), views) == "ranks 8-15, all of gpu-1"
    assert ranks_and_hosts([*range(8), *range(16, 24)], views) == "ranks 0-7, 16-23, all of 2 hosts"
    assert ranks_and_hosts(range(8, 17), views) == "ranks 8-16"
    assert ranks_and_hosts([3], views) == "rank 3"
    assert ranks_and_hosts(range(32), views) == "ranks 0-31"


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        (range(8, 16), "all ranks of gpu-1 silent for 0 s"),
        (range(16), "ranks 0-15 silent for 0 s"),
        (range(2, 20, 2), "9 ranks silent for 0 s"),
    ],
)
def test_a_silent_host_is_named(silent, words):
    clock = Clock()
    job = JobState(clock)
    job.set_hub_state(HubState.LIVE)
    ranks = range(32)
    feed(
        job, welcome(world_size=32), *(info(rank, host=f"gpu-{rank // 8}", world_size=32) for rank in ranks)
    )
    feed(job, *(step(rank, 0) for rank in ranks))
    clock.pass_s(60)
    feed(job, *(step(rank, 1, start_ns=clock()) for rank in ranks if rank not in silent))
    trouble = trouble_of(feed(job, replace(status(), silent_ranks=tuple(silent))))
    assert in_brief(trouble, trouble.since_ns) == words
