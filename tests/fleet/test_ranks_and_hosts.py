"""Many ranks are named by the hosts that they fill."""

from overlaptop.fleet.job_state import JobState
from overlaptop.report.hosts import ranks_and_hosts

from .builders import Clock, feed, info


def test_ranks_that_fill_hosts_are_named_with_them():
    views = feed(JobState(Clock()), *(info(rank, host=f"gpu-{rank // 8}") for rank in range(32))).ranks
    assert ranks_and_hosts(range(8, 16), views) == "ranks 8-15, all of gpu-1"
    assert ranks_and_hosts([*range(8), *range(16, 24)], views) == "ranks 0-7, 16-23, all of 2 hosts"
    assert ranks_and_hosts(range(8, 17), views) == "ranks 8-16"
    assert ranks_and_hosts([3], views) == "rank 3"
    assert ranks_and_hosts(range(32), views) == "ranks 0-31"
