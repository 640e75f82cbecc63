"""A job whose overlap is known by construction reports that overlap."""

from __future__ import annotations

import statistics

import pytest

# Rank 1 joins each collective late, so that on rank 0 it lasts LENGTH_S whatever the machine. Rank 0
# computes (matrix products, not sleep) before it, during half of it, or during all of it.
CONSTRUCTED = """
    import sys, time
    import torch, torch.distributed as dist
    import overlaptop.agent

    HIDDEN = float(sys.argv[1])
    LENGTH_S = 0.06
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    a = torch.randn(96, 96)
    tensor = torch.ones(1024)
    started = torch.tensor([time.monotonic() + 0.3], dtype=torch.float64)
    dist.broadcast(started, 0)

    def compute_until(moment):
        while time.monotonic() < moment:
            a @ a

    for step in range(14):
        begin = started.item() + step * 4 * LENGTH_S
        time.sleep(max(0.0, begin - time.monotonic()))
        overlaptop.agent.step()
        if rank == 1:
            time.sleep(max(0.0, begin + 2 * LENGTH_S - time.monotonic()))
            dist.all_reduce(tensor)
            continue
        compute_until(begin + LENGTH_S)
        work = dist.all_reduce(tensor, async_op=True)
        compute_until(begin + LENGTH_S + HIDDEN * LENGTH_S)
        work.wait()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.2])
def test_constructed_overlap_is_reported_within_five_points(run_ranks, hidden: float) -> None:
    job = run_ranks(CONSTRUCTED, arguments=(str(hidden),))

    assert job.codes == [0, 0], job.errs
    steps = job.steps(rank=0)
    assert len(steps) == 13
    assert statistics.median(s.overlap for s in steps) == pytest.approx(min(hidden, 1.0), abs=0.05)
    for step in steps:
        assert step.collectives == 1
        assert step.comm_bytes == 4096
        assert step.step_ns == (
            step.hidden_ns + step.exposed_ns + step.compute_only_ns + step.copy_only_ns + step.idle_ns
        )
    assert job.info().source == "host"
    assert not job.info().compute_exact


def test_a_blocking_collective_is_all_exposed_and_all_stall(run_ranks) -> None:
    job = run_ranks(
        """
        import time
        import torch, torch.distributed as dist
        import overlaptop.agent

        dist.init_process_group("gloo")
        tensor = torch.ones(1024)
        for step in range(6):
            overlaptop.agent.step()
            time.sleep(0.05 if dist.get_rank() == 1 else 0)
            dist.all_reduce(tensor)
        dist.destroy_process_group()
        """
    )

    assert job.codes == [0, 0], job.errs
    late = [step for step in job.steps(rank=0) if step.step > 0]
    assert statistics.median(s.overlap for s in late) < 0.05
    assert statistics.median(s.stall_ns / s.comm_ns for s in late) > 0.95
