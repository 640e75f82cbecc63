"""A job whose overlap is known by construction reports that overlap."""

from __future__ import annotations

import json
import statistics

import pytest

# Rank 1 joins each collective late, so that on rank 0 it lasts LENGTH_S, and a little longer on a machine
# that is slow to wake a thread. Rank 0 computes (matrix products, not sleep) before it, during half of it,
# or during all of it, and says what came of that by its own clock.
CONSTRUCTED = """
    import json, sys, time
    import torch, torch.distributed as dist
    import overlaptop.agent

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

    shares, truths = [float(word) for word in sys.argv[1:]], []
    for step, hidden in enumerate([*shares, shares[-1]]):
        begin = started.item() + step * 4 * LENGTH_S
        time.sleep(max(0.0, begin - time.monotonic()))
        overlaptop.agent.step()
        if rank == 1:
            time.sleep(max(0.0, begin + 2 * LENGTH_S - time.monotonic()))
            dist.all_reduce(tensor)
            continue
        compute_until(begin + LENGTH_S)
        issued, ended = time.monotonic(), []
        work = dist.all_reduce(tensor, async_op=True)
        returned = time.monotonic()
        work.get_future().add_done_callback(lambda _: ended.append(time.monotonic()))
        compute_until(begin + LENGTH_S + hidden * LENGTH_S)
        computed = time.monotonic()
        work.wait()
        while not ended:
            time.sleep(0.0001)
        truths.append([
            (min(computed, ended[0]) - began) / (ended[0] - began) for began in (returned, issued)
        ])
    if rank == 0:
        print(json.dumps(truths[:-1]))
    dist.destroy_process_group()
"""


SHARES = (0.0, 0.5, 1.2)
REPEATS = 10


def test_constructed_overlap_is_reported_within_five_points(run_ranks) -> None:
    shares = [share for share in SHARES for _ in range(REPEATS)]
    job = run_ranks(CONSTRUCTED, forked=True, options=("--every", "1"), arguments=tuple(map(str, shares)))

    assert job.codes == [0, 0], job.errs
    steps = job.steps(rank=0)
    assert len(steps) == len(shares)
    truths = json.loads(job.outs[0])
    for number, share in enumerate(SHARES):
        alike = slice(number * REPEATS, (number + 1) * REPEATS)
        # It began somewhere within the call.
        least, most = (statistics.median(each) for each in zip(*truths[alike], strict=True))
        assert (least + most) / 2 == pytest.approx(min(share, 1.0), abs=0.2)
        assert least - 0.05 <= statistics.median(s.overlap for s in steps[alike]) <= most + 0.05
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
        """,
        options=("--every", "1"),
        forked=True,
    )

    assert job.codes == [0, 0], job.errs
    late = [step for step in job.steps(rank=0) if step.step > 0]
    assert statistics.median(s.overlap for s in late) < 0.05
    assert statistics.median(s.stall_ns / s.comm_ns for s in late) > 0.95


def test_the_wait_of_ddp_for_its_buffers_is_exposed_and_stall(run_ranks) -> None:
    """Rank 0 broadcasts BatchNorm's buffers and comes late; rank 1 waits for them in C++."""
    late_s = 0.1
    job = run_ranks(
        f"""
        import time
        import torch, torch.distributed as dist, torch.distributed.nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(8):
            if dist.get_rank() == 0:
                time.sleep({late_s})
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        del model
        dist.destroy_process_group()
        """,
        options=("--every", "1"),
        forked=True,
    )

    assert job.codes == [0, 0], job.errs
    waiting = job.steps(rank=1)
    assert len(waiting) == 7
    most_ns = 0.8 * late_s * 1e9
    assert statistics.median(step.exposed_ns for step in waiting) > most_ns
    assert statistics.median(step.stall_ns for step in waiting) > most_ns
