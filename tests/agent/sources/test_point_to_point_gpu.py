"""Sends and receives on NCCL: each is told with its other rank, and a receive is split by its send."""

from statistics import median

import pytest

from overlaptop.timeline.matching import match

from .gpu import one_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

LATE_MS = 30
SCRIPT = f"""
    import os, time
    rank = int(os.environ["RANK"])
    import torch, torch.distributed as dist
    import overlaptop.agent
    from overlaptop.workloads.shared_gpu import own_gpu

    torch.cuda.set_device(own_gpu(torch.cuda.device_count()))
    dist.init_process_group("nccl")
    given, taken = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
    for step in range(60):
        if rank == 0:
            time.sleep({LATE_MS} / 1000)
            dist.send(given, 1)
        else:
            dist.recv(taken, 0)
        ops = [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, taken, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        torch.cuda.synchronize()
        overlaptop.agent.step()
    dist.destroy_process_group()
"""


@one_gpu
def test_receives_alone_and_in_one_launch_with_a_send_are_split_by_the_rank_that_they_wait_for(run_ranks):
    job = run_ranks(SCRIPT, nproc=2, options=("--source", "kernels", "--every", "1"))
    assert job.codes == [0, 0], job.errs
    of_rank = [{each.step: each for each in job.details(rank)} for rank in (0, 1)]
    waits_ms = []
    for step in sorted(of_rank[0].keys() & of_rank[1].keys()):
        if not all(each.group for details in of_rank for each in details[step].collectives):
            continue  # it was not looked up
        calls = {rank: details[step].collectives for rank, details in enumerate(of_rank)}
        assert [(call.sends_to, call.receives_from) for call in calls[0]] == [(1, None), (1, 1)]
        assert [(call.sends_to, call.receives_from) for call in calls[1]] == [(None, 0), (0, 0)]
        origins_ns = {rank: details[step].start_ns for rank, details in enumerate(of_rank)}
        found = match(calls, origins_ns=origins_ns)
        assert [each.not_attributed for each in found] == [""] * 3
        waits_ms.append((found[0].wait_ns(1) or 0) / 1e6)
    assert len(waits_ms) > 10
    assert median(waits_ms) == pytest.approx(LATE_MS, rel=0.2)
