"""A job whose overlap is known by construction reports that overlap."""

import json
import statistics

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
        issued = time.monotonic()
        work = dist.all_reduce(tensor, async_op=True)
        compute_until(begin + LENGTH_S + hidden * LENGTH_S)
        computed = time.monotonic()
        work.wait()
        truths.append((computed - issued) / (time.monotonic() - issued))
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
    for number in range(len(SHARES)):
        alike = slice(number * REPEATS, (number + 1) * REPEATS)
        off = [abs(step.overlap - truth) for truth, step in zip(truths[alike], steps[alike], strict=True)]
        assert statistics.median(off) <= 0.05
    # A machine that stalls may make others of some of them.
    assert min(truths) < 0.2 < 0.8 < max(truths)
    assert {(step.collectives, step.comm_bytes) for step in steps} == {(1, 4096)}
    assert (job.info().source, job.info().compute_exact) == ("host", False)
